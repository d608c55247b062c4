"""Lines of JSON from workers, and what clients say besides tensors: read, or a ValueError."""

from protolith.engines.messages import read_line, read_trained, sentence


def one(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert sentence(text).isprintable()
    try:
        answer = read_line(text)
        said = read_trained(answer)
    except ValueError as error:
        assert sentence(error).isprintable()
        return
    assert said.count >= 0 and all(isinstance(value, float) for value in said.metrics.values())
