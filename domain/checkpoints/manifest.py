"""The manifest of a checkpoint: everything that the cut of an epoch consists of, by address.

It is canonical JSON in CAS and carries its own hash, over the body without the member that holds it; the event of the checkpoint
names both. What must stay true: whoever restores checks the hash, whose it is, its plan and the schema of its state, and refuses
by name what does not fit; a manifest's size depends on the partitions, not on how long the run has been going. Pure.
"""

from typing import Any, Final

import msgspec

from domain.canonical import address_of, canonical, parse
from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import CanonicalError
from domain.stream.errors import CheckpointInvalidError, PartitionsChangedError
from domain.stream.worker_core import STATE_SCHEMA, STATE_SCHEMAS_READ, StreamLimits

MANIFEST_FORMAT: Final = "FINAZ_CHECKPOINT_V1"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run computes and from where: a state of another plan means something else. `source` is the topic's name."""

    flow: str
    limits: StreamLimits
    partitions: int
    source: str


class SinkRef(msgspec.Struct, frozen=True, kw_only=True):
    """The sink as of a cut: the last segment's address (None: nothing yet), and how much there is in all of them."""

    head: str | None = None
    segments: int = 0
    ticks: int = 0
    accepted: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cut of an epoch. Maps by partition have its number as text; watermarks are microseconds, by partition.

    `state` addresses the state of clocks, nodes, dedupe and watermarks; `counts` are the treatments of all offsets from
    `start_offsets` to `next_offsets`; `marks` are the captured ends of a bounded run; `rng` is null: nothing random is computed.
    """

    format: str
    run_id: str
    epoch: int
    token: int
    plan: Plan
    state: str
    state_schema: str
    sink: SinkRef
    next_offsets: dict[str, int]
    start_offsets: dict[str, int]
    marks: dict[str, int] | None
    counts: dict[str, int]
    watermarks: tuple[int, ...]
    side_inputs: tuple[str, ...]
    rng: None
    manifest_hash: str


def build_manifest(**body: Any) -> Manifest:
    """The manifest of a body (every member but `format`, `rng` and the hash), with its hash."""
    unhashed = Manifest(format=MANIFEST_FORMAT, rng=None, manifest_hash="", **body)
    return msgspec.structs.replace(unhashed, manifest_hash=hash_of(unhashed))


def hash_of(manifest: Manifest) -> str:
    """The hash that the manifest's body has."""
    body = msgspec.to_builtins(manifest)
    del body["manifest_hash"]
    return address_of(body)


def encode_checkpoint(manifest: Manifest) -> bytes:
    """The canonical bytes."""
    return canonical(msgspec.to_builtins(manifest))


def parse_checkpoint(data: bytes, at: str) -> Manifest:
    """Read a manifest and check its hash. `CheckpointInvalidError` at `at` (its address) if it is none."""
    try:
        manifest = msgspec.convert(parse(data), Manifest)
    except (CanonicalError, msgspec.ValidationError) as error:
        raise CheckpointInvalidError(f"no manifest: {error}", at=at, expected=MANIFEST_FORMAT) from None
    if manifest.format != MANIFEST_FORMAT:
        raise CheckpointInvalidError("another format", at=f"{at}, format", expected=MANIFEST_FORMAT)
    if hash_of(manifest) != manifest.manifest_hash:
        raise CheckpointInvalidError(
            "the hash is not the body's", at=f"{at}, manifest_hash", expected=hash_of(manifest)
        )
    return manifest


def check_manifest(manifest: Manifest, committed: CheckpointCommitted) -> None:
    """That the manifest is the one that was committed. `CheckpointInvalidError` naming the member that says otherwise."""
    for name in ("manifest_hash", "run_id", "epoch", "token", "next_offsets"):
        found, wanted = getattr(manifest, name), getattr(committed, name)
        if found != wanted:
            raise CheckpointInvalidError(
                f"the manifest says {found!r}", at=f"{committed.manifest}, {name}", expected=repr(wanted)
            )


def check_plan(manifest: Manifest, plan: Plan) -> None:
    """That the state can be gone on with under the plan.

    Raises `PartitionsChangedError` for another number of partitions, `CheckpointInvalidError` naming what else does not fit.
    """
    at = f"checkpoint {manifest.epoch} of {manifest.run_id}"
    if manifest.plan.partitions != plan.partitions:
        raise PartitionsChangedError(
            f"the checkpoint was made over {manifest.plan.partitions} partitions, the topic has {plan.partitions}",
            at=plan.source,
            expected=str(manifest.plan.partitions),
        )
    for name in ("flow", "limits", "source"):
        found, wanted = getattr(manifest.plan, name), getattr(plan, name)
        if found != wanted:
            raise CheckpointInvalidError(f"made for another plan: {found!r}", at=f"{at}, {name}", expected=repr(wanted))
    if manifest.state_schema not in STATE_SCHEMAS_READ:
        raise CheckpointInvalidError(
            f"a state of schema {manifest.state_schema}", at=f"{at}, state_schema", expected=STATE_SCHEMA
        )
