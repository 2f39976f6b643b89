"""Artifacts over HTTP: blobs of the content-addressed store, by address.

What must stay true: what is served hashes to its address (the store verifies on every read); what is stored was hashed before, so a
client can't put bytes under another name; storing twice changes nothing. Whoever knows an address may read it: an address is a
hash of the content, known only to those who have the content or a run that names it. A crash leaves the blob whole or absent.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import AnswerSpec, BodySpec, Call, Operation
from api.parameters import Place, pattern
from api.parts import ApiParts
from api.run_schemas import ADDRESS_PATTERN
from api.schemas import ArtifactStored
from domain.canonical import address
from domain.errors import ArtifactMismatchError, BlobMissingError

ARTIFACT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one artifact put over HTTP; snapshots are stored as chunks well below it."""

TRANSFERS_AT_ONCE_MAX: Final = 4
"""Artifacts read or stored at the same time, each whole in memory. More wait."""

OCTETS: Final = "application/octet-stream"
_ADDRESS: Final = pattern("address", "The content address.", ADDRESS_PATTERN, BlobMissingError, place=Place.PATH)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of artifacts."""
    handlers = _Handlers(parts)
    yield Operation(
        name="getArtifact",
        method="GET",
        path="/v1/artifacts/{address}",
        summary="The bytes under an address",
        tag="artifacts",
        scope=Scope.RUNS_READ,
        parameters=(_ADDRESS,),
        answers=(
            AnswerSpec(
                status=200,
                description="The bytes.",
                content={OCTETS: {"type": "string", "format": "binary"}},
                headers={"ETag": {"schema": {"type": "string"}, "required": True}},
            ),
        ),
        problems=(404,),
        handler=handlers.get,
    )
    yield Operation(
        name="putArtifact",
        method="PUT",
        path="/v1/artifacts/{address}",
        summary="Store bytes under their address",
        description=f"At most {ARTIFACT_BYTES_MAX} bytes; they must hash to the address. Idempotent.",
        tag="artifacts",
        scope=Scope.RUNS_WRITE,
        parameters=(_ADDRESS,),
        body=BodySpec(media_type=OCTETS, bytes_max=ARTIFACT_BYTES_MAX, schema={"type": "string", "format": "binary"}),
        answers=(document_answer("Stored, now or before.", ArtifactStored),),
        problems=(404, 409),
        handler=handlers.put,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._blobs = parts.blobs
        self._turns = asyncio.Semaphore(TRANSFERS_AT_ONCE_MAX)

    async def get(self, call: Call) -> Answer:
        name: str = call.path_arguments["address"]
        async with self._turns:
            data = await asyncio.to_thread(self._blobs.get, name)
        headers = ((b"etag", f'"{name}"'.encode()),)
        return Answer(200, data, OCTETS, headers, b"private, max-age=31536000, immutable")

    async def put(self, call: Call) -> Answer:
        name: str = call.path_arguments["address"]
        async with self._turns:
            data = await call.body(OCTETS, ARTIFACT_BYTES_MAX)
            await asyncio.to_thread(self._store, name, data)
        return json_answer(ArtifactStored(address=name, size_bytes=len(data)))

    def _store(self, name: str, data: bytes) -> None:
        found = address(data)
        if found != name:
            raise ArtifactMismatchError("the bytes do not hash to the address", at="body", expected=name, found=found)
        self._blobs.put(data)
