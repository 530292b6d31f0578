"""How many parts a protobuf message has, counted in its bytes before anything is made of them.

Source: https://protobuf.dev/programming-guides/encoding.  An empty message of two bytes becomes
an object of a hundred or more: a file of 60 MB becomes gigabytes.  Only what is a message by its descriptor is entered;
the bytes of a tensor are one part, however many they are.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

__all__ = ["MOST_PARTS", "more_parts_than"]

MOST_PARTS = 250_000  # fields of all messages; the largest backbones that are known have a tenth
_VALUES_OF_A_PART = 16  # packed integers, of which a byte becomes 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STORED = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)  # as they are


def more_parts_than(most: int, content: bytes, kind: Descriptor) -> bool:
    """Whether a message of that kind has more fields than ``most``, its submessages' included.

    What is no such message is counted as far as it can be read; its parser says what is wrong.
    """
    if len(content) <= most:  # each part takes a byte and more
        return False
    left = most
    waiting = [(0, len(content), kind)]
    while waiting:
        at, end, kind = waiting.pop()
        fields = kind.fields_by_number
        while at < end:
            left -= 1
            tag, at = _varint(content, at, end)
            wire = tag & 7
            if wire == _BYTES:
                length, at = _varint(content, at, end)
                field = fields.get(tag >> 3)
                if field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                    waiting.append((at, min(end, at + length), field.message_type))
                elif field is not None and field.cpp_type not in _STORED:
                    left -= min(length, end - at) // _VALUES_OF_A_PART
                at += length
            elif wire == _VARINT:
                _, at = _varint(content, at, end)
            elif wire in (_FIXED32, _FIXED64):
                at += 4 if wire == _FIXED32 else 8
            else:
                break
            if left < 0:
                return True
    return False


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at
