"""Records that our own publisher cannot make, published through the client's C library."""

import ctypes
from pathlib import Path

import confluent_kafka
import pytest

TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADER, END = 1, 3, 4, 5, 7, 9, 0
"""Tags of the arguments of `rd_kafka_producev`."""

COPY = 2
FLUSH_MILLISECONDS = 30_000


def publish_with_header(bootstrap: str, topic: str, partition: int, key: bytes, value: bytes, name: bytes) -> None:
    """Publish one record with a header whose name is any bytes but NUL."""
    library = _library()
    error = ctypes.create_string_buffer(512)
    size = ctypes.c_size_t(len(error))
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), error, size) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, size))
    code = library.rd_kafka_producev(
        producer,
        *(ctypes.c_int(TOPIC), topic.encode()),
        *(ctypes.c_int(PARTITION), ctypes.c_int32(partition)),
        *(ctypes.c_int(KEY), key, ctypes.c_size_t(len(key))),
        *(ctypes.c_int(VALUE), value, ctypes.c_size_t(len(value))),
        *(ctypes.c_int(FLAGS), ctypes.c_int(COPY)),
        *(ctypes.c_int(HEADER), name, b"x", ctypes.c_ssize_t(1)),
        ctypes.c_int(END),
    )
    assert code == 0
    assert library.rd_kafka_flush(producer, FLUSH_MILLISECONDS) == 0
    library.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    """The library that came with the client's wheel."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*.so*"))
    if not found:
        pytest.skip("the client's C library is not where Linux wheels have it")
    library = ctypes.CDLL(str(found[0]))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    return library
