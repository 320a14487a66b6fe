"""What `--load-format spantrace-random` writes into a model's parameters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from spantrace.errors import SpantraceError  # noqa: E402
from spantrace.vllm_adapter.random_weights import fill, zero_attention  # noqa: E402


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64))


class GemmaRMSNorm(RMSNorm):
    pass


class ReplicatedLinear(nn.Module):
    tp_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(256, 64, dtype=torch.bfloat16))
        self.bias = nn.Parameter(torch.empty(256))


class GateLinear(ReplicatedLinear):
    pass


class RowParallelLinear(nn.Linear):
    tp_size = 2
    input_size = 128


class ColumnParallelLinear(nn.Linear):
    tp_size = 2


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("A", "A_log", "D", "dt_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(1000)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.norm, self.gemma = RMSNorm(), GemmaRMSNorm()
        self.gate, self.row = GateLinear(), RowParallelLinear(64, 256)
        self.column, self.twin = ColumnParallelLinear(64, 256), ColumnParallelLinear(64, 256)
        self.mamba = Mamba()
        self.experts = nn.ParameterDict({"w13": torch.empty(4, 256, 64), "w13_bias": torch.empty(4, 256)})
        self.table = nn.Parameter(torch.arange(5), requires_grad=False)


def filled(rank: int = 0) -> Model:
    model = Model()
    fill(model, rank)
    return model


def test_activations_keep_their_scale() -> None:
    model = filled()
    assert model.embed.weight.std().item() == pytest.approx(1, rel=0.05)
    assert model.column(torch.randn(1000, 64)).std().item() == pytest.approx(1, rel=0.05)
    assert model.experts["w13"].std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert model.row.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)


def test_vectors_are_neutral() -> None:
    model = filled()
    assert (model.norm.weight == 1).all()
    assert (model.gemma.weight == 0).all()
    assert (model.gate.bias == 0).all()
    assert (model.experts["w13_bias"] == 0).all()
    assert model.table.tolist() == [0, 1, 2, 3, 4]


def test_mamba_states_decay_and_time_steps_are_small() -> None:
    mamba = filled().mamba
    assert -16 <= mamba.A.min() < mamba.A.max() <= -1
    assert 0 <= mamba.A_log.min() < mamba.A_log.max().exp() <= 16.01
    assert (mamba.D == 1).all()
    step = nn.functional.softplus(mamba.dt_bias)
    assert 0.99e-3 <= step.min() < step.max() <= 0.101


def test_the_same_name_is_the_same_tensor_and_another_name_another() -> None:
    model, again = filled(), filled()
    assert torch.equal(model.gate.weight, again.gate.weight)
    assert not torch.equal(model.column.weight, model.twin.weight)


def test_ranks_agree_on_replicated_tensors_and_differ_in_shards() -> None:
    first, second = filled(rank=0), filled(rank=1)
    assert torch.equal(first.gate.weight, second.gate.weight)
    assert torch.equal(first.embed.weight, second.embed.weight)
    assert not torch.equal(first.column.weight, second.column.weight)


class Attention(nn.Module):
    pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attn, self.o_proj = ColumnParallelLinear(64, 64), Attention(), RowParallelLinear(64, 64)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.mlp = Block(), RowParallelLinear(64, 64)


def test_the_output_of_one_attention_layer_is_zeroed_and_nothing_else() -> None:
    layers = nn.ModuleList([Layer(), Layer(), Layer()])
    fill(layers)
    zero_attention(layers, 1)
    zeroed = [name for name, parameter in layers.named_parameters() if name.endswith("weight") and not parameter.any()]
    assert zeroed == ["1.mixer.o_proj.weight"]


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_named(layer: int) -> None:
    with pytest.raises(SpantraceError, match=f"zero_attention is {layer}, but the model has 3 attention layers"):
        zero_attention(nn.ModuleList([Layer(), Layer(), Layer()]), layer)
