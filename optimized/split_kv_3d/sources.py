"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version."""

from __future__ import annotations

_TRITON = "vllm.v1.attention.backends.triton_attn:"
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.dflash.speculator:DFlashSpeculator."
_MANAGER = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager."
FORWARD = _TRITON + "TritonAttentionImpl.forward"
SET_ATTN = _SPECULATOR + "set_attn"
CAPTURE = _SPECULATOR + "capture"
DISPATCH = _MANAGER + "dispatch"
CAPTURE_TARGET = "vllm.v1.worker.gpu.cudagraph_utils:ModelCudaGraphManager.capture"

SOURCES: dict[str, dict[str, str]] = {
    FORWARD: {
        "0.26.0": "b1d3fb9c4035d52c062a24f6d5ff2639524c54bc94dccfd11e321be1acd300cf",
        "0.28.0": "b1d3fb9c4035d52c062a24f6d5ff2639524c54bc94dccfd11e321be1acd300cf",
        "0.29.0": "b1d3fb9c4035d52c062a24f6d5ff2639524c54bc94dccfd11e321be1acd300cf",
        "0.30.0": "b1d3fb9c4035d52c062a24f6d5ff2639524c54bc94dccfd11e321be1acd300cf",
        "0.31.0": "5babf76f3a4b7d624be017edbeafc59fb14887affd98a2668eca5001bb0382f5",
        "0.32.0": "f8bd280f132e41bb70babe71561ec90118d2578ce931d50364c36c5f1266dd83",
        "0.33.0": "3c9b038aa7524ec183cd7ff791101cdb3606f05acf3d46f2a1f43035fa661ce3",
    },
    SET_ATTN: {
        "0.26.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.28.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.29.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.30.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.31.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.32.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.33.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
    },
    CAPTURE: {
        "0.26.0": "70632ffd948ac6c5460d8f67c5e34748d0648bb2ea4c21877e0ad7f7ea3d6c8d",
        "0.28.0": "63f96052f253faed131e23c3c41770e093006af69e787f2b7d99d513a4a22158",
        "0.29.0": "63f96052f253faed131e23c3c41770e093006af69e787f2b7d99d513a4a22158",
        "0.30.0": "63f96052f253faed131e23c3c41770e093006af69e787f2b7d99d513a4a22158",
        "0.31.0": "98d7726ccf051af6cf417fb31f2f5d10f4f880ab2afd16960dded187ed71e7d8",
        "0.32.0": "4b065e460772549a2acb850fcd33be6f64b0ba2dcb4945ec304baf411fcfd6f7",
        "0.33.0": "4b065e460772549a2acb850fcd33be6f64b0ba2dcb4945ec304baf411fcfd6f7",
    },
    DISPATCH: {
        "0.26.0": "2c18aeec8fbef968dbe4ed0d2012f03f8a2401a5932a8d5065361b63dddc0bab",
        "0.28.0": "e369c59ba0ab0eee3b8e835c3e8d1dbb409e8cdd58891333c56af15964c816dd",
        "0.29.0": "e369c59ba0ab0eee3b8e835c3e8d1dbb409e8cdd58891333c56af15964c816dd",
        "0.30.0": "ff170bbfa59faf6ed739c8211e83a1eea75012e89e07a42fa88024a6d7883196",
        "0.31.0": "16099f9929707031ed674ec097586ff131828072d35b5c7f5dc71629a0b51672",
        "0.32.0": "16099f9929707031ed674ec097586ff131828072d35b5c7f5dc71629a0b51672",
        "0.33.0": "16099f9929707031ed674ec097586ff131828072d35b5c7f5dc71629a0b51672",
    },
    CAPTURE_TARGET: {
        "0.26.0": "243b50008690f7713fa3c60874ad4b5728b8b288a4173ce78ec29a2aa8726203",
        "0.28.0": "d2c676424030cad53756fb378838b212d4693d3bfc6b2317ff177de31e1bab2d",
        "0.29.0": "a472e8420ade85baf9e412fa51284e67ecf15c11a83b941996bd0fd9233193d1",
        "0.30.0": "bc7529064c7c82aa1f2eae4e95da7be5b38a0d999b1d24f7caa6e4849969f5ba",
        "0.31.0": "c1ab556f3bc4a834375924290f490188ae7d0c2f287f833d0609dd69de85b191",
        "0.32.0": "c1ab556f3bc4a834375924290f490188ae7d0c2f287f833d0609dd69de85b191",
        "0.33.0": "c549ecf0513678cf2e1c7c6e5407cbd48eeea1087ad87b886a3c6658fcbb6d12",
    },
    _TRITON + "TritonAttentionImpl.__init__": {
        "0.26.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.28.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.29.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.30.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.31.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.32.0": "60003b165f651764eb20f2f58f5a3a51c4c23cd63b8a581cccf29afc64bb0fc7",
        "0.33.0": "aa73a78d13406dfef0c573c35fc97691d1fc74b07ca4bcab46f8cfec0e91bd22",
    },
    _TRITON + "TritonAttentionMetadata": {
        "0.26.0": "58c42029579d089b10c40795cf28241f85769d37e34d3aa5c77d7a19ae22d2c5",
        "0.28.0": "58c42029579d089b10c40795cf28241f85769d37e34d3aa5c77d7a19ae22d2c5",
        "0.29.0": "58c42029579d089b10c40795cf28241f85769d37e34d3aa5c77d7a19ae22d2c5",
        "0.30.0": "58c42029579d089b10c40795cf28241f85769d37e34d3aa5c77d7a19ae22d2c5",
        "0.31.0": "58c42029579d089b10c40795cf28241f85769d37e34d3aa5c77d7a19ae22d2c5",
        "0.32.0": "ba9c2d51d53285fc0fd865c9f03738cbfea05358a16e9522aac2f3f92d387f5f",
        "0.33.0": "ba9c2d51d53285fc0fd865c9f03738cbfea05358a16e9522aac2f3f92d387f5f",
    },
    _TRITON + "TritonAttentionMetadataBuilder.build": {
        "0.26.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.28.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.29.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.30.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.31.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.32.0": "b52c7d32f5f5edf19bd97c45479411c2fcc98eb3a47d12aeca1960a447245c25",
        "0.33.0": "b52c7d32f5f5edf19bd97c45479411c2fcc98eb3a47d12aeca1960a447245c25",
    },
    "vllm.v1.attention.ops.triton_attention_helpers:compute_kv_seq_mask": {
        "0.26.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.28.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.29.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.30.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.31.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.32.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
        "0.33.0": "af2a89175531991d5458cae6ca396a0ddf9a7e66083a6dca9381e8b1c77d4131",
    },
    _MANAGER + "capture": {
        "0.26.0": "be8e4d40a3be3d3f07f864d56d5ea72e97dbdb596d8c65d2d5b79cd4d87241b0",
        "0.28.0": "c7d15ce69eb30e426f68fd3f52951110a0eec709a74bfd6e2c0a1b130596d879",
        "0.29.0": "9d094bd0501339ddbe8a845fd4c32037505111a6000007cfdc47fec206ae725b",
        "0.30.0": "5949212cee6506ad8c652bd85be2ae6c793599c6be1dcb94ef791bcc3d6cb040",
        "0.31.0": "2888e78a300fe4e375afb3889573e6b80e69e71955fbacd073b3d2835c9143c9",
        "0.32.0": "69c4d2047db3f14e971ae89e436f758c80e1ef6dbe9aa6e98c2a7cbc3775c96b",
        "0.33.0": "69c4d2047db3f14e971ae89e436f758c80e1ef6dbe9aa6e98c2a7cbc3775c96b",
    },
    _MANAGER + "run_fullgraph": {
        "0.26.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.28.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.29.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.30.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.31.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.32.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.33.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
    },
    "vllm.v1.worker.gpu.spec_decode.dflash.cudagraph:DFlashCudaGraphManager.capture": {
        "0.26.0": "7270960e76c15711b10837f042ae918876824becb0f1d2f95e8421149ee8f902",
        "0.28.0": "7270960e76c15711b10837f042ae918876824becb0f1d2f95e8421149ee8f902",
        "0.29.0": "7270960e76c15711b10837f042ae918876824becb0f1d2f95e8421149ee8f902",
        "0.30.0": "7270960e76c15711b10837f042ae918876824becb0f1d2f95e8421149ee8f902",
        "0.31.0": "602c0af496e7d0149bf40884ed265f6bf8bb7109bfcc93329485ed765b166080",
        "0.32.0": "880bb3b1ec392f73c6eefae6547fd5cbd9b2a6ca03973d3c6e89c7ad9bc13bfe",
        "0.33.0": "880bb3b1ec392f73c6eefae6547fd5cbd9b2a6ca03973d3c6e89c7ad9bc13bfe",
    },
}
