"""Numbers in JSON, read back by Python's own `struct`."""

import base64
import struct

import pytest
import torch

from regard.web.encode import encode_bytes, encode_matrix, encode_weights


def test_weights_come_back_within_1e_5_row_by_row():
    weights = torch.rand(3, 5).softmax(-1)
    numbers = struct.unpack("<15H", base64.b64decode(encode_weights(weights)))
    expected = [weights[row, column].item() for row in range(3) for column in range(5)]
    assert [number / 65535 for number in numbers] == pytest.approx(expected, abs=1e-5)


def test_weights_just_outside_0_to_1_and_nan_do_not_wrap_around():
    numbers = struct.unpack("<5H", base64.b64decode(encode_weights(torch.tensor([-1e-7, 0.0, 1.0, 1.0 + 1e-6, float("nan")]))))
    assert numbers == (0, 0, 65535, 65535, 0)


def test_a_transposed_matrix_is_written_row_by_row():
    matrix = torch.arange(6.0).reshape(2, 3).T
    encoded = encode_matrix(matrix)
    assert (encoded["rows"], encoded["columns"]) == (3, 2)
    assert struct.unpack("<6f", base64.b64decode(encoded["values"])) == (0.0, 3.0, 1.0, 4.0, 2.0, 5.0)


def test_a_vector_is_a_matrix_of_one_row():
    assert (encode_matrix(torch.ones(4))["rows"], encode_matrix(torch.ones(4))["columns"]) == (1, 4)


def test_booleans_and_levels_are_bytes():
    assert base64.b64decode(encode_bytes(torch.tensor([[True, False], [True, True]]))) == b"\x01\x00\x01\x01"
    assert base64.b64decode(encode_bytes(torch.tensor([0, 128, 255]))) == b"\x00\x80\xff"
