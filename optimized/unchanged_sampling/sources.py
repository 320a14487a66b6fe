"""The vLLM functions and classes that are replaced or relied on, and the sha256 of their sources in each known version.

A class stands here as a whole where anything in it may change what is copied.
"""

from __future__ import annotations

_GPU = "vllm.v1.worker.gpu."
_SAMPLE, _BUFFERS = _GPU + "sample.", _GPU + "buffer_utils:"
_SAMPLER = _SAMPLE + "sampler:Sampler"
_WATERMARK = "vllm.v1.watermarking.gpu_sampler:GPUWatermarkSampler"
_LOGIT_BIAS = _SAMPLE + "logit_bias:LogitBiasState"
_PENALTIES = _SAMPLE + "penalties:PenaltiesState"
_BAD_WORDS = _SAMPLE + "bad_words:BadWordsState"

ADD, WRITE = _SAMPLER + ".add_request", _SAMPLER + ".apply_staged_writes"
SAMPLERS = frozenset({_SAMPLER, _WATERMARK})
"""Classes whose own additions to either method are run in every step."""
PROCESSORS = frozenset({_LOGIT_BIAS, _PENALTIES, _BAD_WORDS})
"""Classes of which nothing but an added request changes what they copy."""

SOURCES: dict[str, dict[str, str]] = {
    ADD: {
        "0.26.0": "bdfb6450872d55b4bc469d2e3170364f1a9037e972bd6c3c75919a8d6b04b53a",
        "0.28.0": "118dc62b378000ea4062b81af2cb1f5a0d9565e2efc10895b8324cf246e4b360",
        "0.29.0": "257c12eec516f24fd48c2be43b4cd1e842ef703915ce3ba51340ea3ad5786757",
        "0.30.0": "257c12eec516f24fd48c2be43b4cd1e842ef703915ce3ba51340ea3ad5786757",
        "0.31.0": "91f708bafa7720f95bcf7005420d64f6ee2a44beaf81ca5f95333307fb8864f5",
        "0.32.0": "91f708bafa7720f95bcf7005420d64f6ee2a44beaf81ca5f95333307fb8864f5",
        "0.33.0": "91f708bafa7720f95bcf7005420d64f6ee2a44beaf81ca5f95333307fb8864f5",
    },
    WRITE: {
        "0.26.0": "7c993f58163ae2c84f6c7b7f47526fab265a14ccb26f9b83c2bce679a654dace",
        "0.28.0": "7b39c82633fd4672ddcc37caa89f1dc063c8c6d733dfaaee5bfb6eaae213e0c7",
        "0.29.0": "9fdf399b5a39b8340c695ec557d9d5f22697173ea810b71d00c4342379b67f30",
        "0.30.0": "9fdf399b5a39b8340c695ec557d9d5f22697173ea810b71d00c4342379b67f30",
        "0.31.0": "df76d2c086d0995c5bfaa19579db9efd2ac3e07f3563f05bfd7c2b118195ec34",
        "0.32.0": "df76d2c086d0995c5bfaa19579db9efd2ac3e07f3563f05bfd7c2b118195ec34",
        "0.33.0": "df76d2c086d0995c5bfaa19579db9efd2ac3e07f3563f05bfd7c2b118195ec34",
    },
    _SAMPLER + ".__init__": {
        "0.26.0": "2a58f80e153ddcb16490f28a8bd4ff8734e1cc05fa784c3e082318af1202be47",
        "0.28.0": "752f95bacf0399c7a508d242018509e09d80f6acb5c48cc152522521be9bf384",
        "0.29.0": "63dee90b59748760eec690ab95883eebd99a8557c5526a2e75d0d9052bc7906a",
        "0.30.0": "63dee90b59748760eec690ab95883eebd99a8557c5526a2e75d0d9052bc7906a",
        "0.31.0": "fe45e41579da973100260e73def512bcb5d30a15c6ab9293065aad370186ab33",
        "0.32.0": "fe45e41579da973100260e73def512bcb5d30a15c6ab9293065aad370186ab33",
        "0.33.0": "fe45e41579da973100260e73def512bcb5d30a15c6ab9293065aad370186ab33",
    },
    _WATERMARK: {
        "0.30.0": "ff76786b21f21f94fe51b853d7cd14073306e358be4e2b8dfcf31214f7bc049b",
        "0.31.0": "96ec241adad63498ed89eba4a8c9a93f4de9036fb539fe32f957a355a19b933e",
        "0.32.0": "0c4006478deb315435f039fa03b38b1e6ef0e6077ae4f3b14acbcb7ac9b0af8e",
        "0.33.0": "f5f3d07f282b315803bea40a674599ed0e19b6eea42e7543f4209c13aa0797fa",
    },
    _LOGIT_BIAS: {
        "0.26.0": "54d7fb7c1fbfebf518870e5af470d389d85c18f2c03881c598d9ffd9eb1a21ce",
        "0.28.0": "54d7fb7c1fbfebf518870e5af470d389d85c18f2c03881c598d9ffd9eb1a21ce",
        "0.29.0": "d2b9191afb2956ef7725dc9ed6489199a35fe56d110ea89f668452403d144ed5",
        "0.30.0": "d2b9191afb2956ef7725dc9ed6489199a35fe56d110ea89f668452403d144ed5",
        "0.31.0": "4d53181b144da56e5172e6085533b5eb96291492bdaa66de7a6caa809d8a088f",
        "0.32.0": "4d53181b144da56e5172e6085533b5eb96291492bdaa66de7a6caa809d8a088f",
        "0.33.0": "4d53181b144da56e5172e6085533b5eb96291492bdaa66de7a6caa809d8a088f",
    },
    _PENALTIES: {
        "0.26.0": "1d1f1c024101b8f0800804ddb9b6800adb4aae607e9df631f4418ec9d830eccb",
        "0.28.0": "1d1f1c024101b8f0800804ddb9b6800adb4aae607e9df631f4418ec9d830eccb",
        "0.29.0": "1d1f1c024101b8f0800804ddb9b6800adb4aae607e9df631f4418ec9d830eccb",
        "0.30.0": "1d1f1c024101b8f0800804ddb9b6800adb4aae607e9df631f4418ec9d830eccb",
        "0.31.0": "4726e154463b5b907a0d44e28672fa5f397cba1e06640d2316b17724c16508df",
        "0.32.0": "c5cc83fc80781fda8151775c2bae12bb5b9eb40466d76191448d324e6ee88682",
        "0.33.0": "c5cc83fc80781fda8151775c2bae12bb5b9eb40466d76191448d324e6ee88682",
    },
    _BAD_WORDS: {
        "0.26.0": "bea8787e13ad2b3942ab926a2553005ccc64048065e2d59fdb7e8d4335a589c8",
        "0.28.0": "7cc268ca223e413042ff91f0db707b3c1d471510add56b113ed226686cb5545d",
        "0.29.0": "7cc268ca223e413042ff91f0db707b3c1d471510add56b113ed226686cb5545d",
        "0.30.0": "7cc268ca223e413042ff91f0db707b3c1d471510add56b113ed226686cb5545d",
        "0.31.0": "86ddcbff6fa70b21efd9046e3936d1f1184a1fd6a3d4478b328603b8e2754be3",
        "0.32.0": "86ddcbff6fa70b21efd9046e3936d1f1184a1fd6a3d4478b328603b8e2754be3",
        "0.33.0": "86ddcbff6fa70b21efd9046e3936d1f1184a1fd6a3d4478b328603b8e2754be3",
    },
    _SAMPLE + "states:SamplingStates": {
        "0.26.0": "e8dfddbb2a3f185816efb334f6a1fe970c68c2969cbd8786df0026c2cc494dec",
        "0.28.0": "e8dfddbb2a3f185816efb334f6a1fe970c68c2969cbd8786df0026c2cc494dec",
        "0.29.0": "e8dfddbb2a3f185816efb334f6a1fe970c68c2969cbd8786df0026c2cc494dec",
        "0.30.0": "e8dfddbb2a3f185816efb334f6a1fe970c68c2969cbd8786df0026c2cc494dec",
        "0.31.0": "51494abca4729104397f8ba854953848e6f12fc7838001c41cf0816de412792c",
        "0.32.0": "51494abca4729104397f8ba854953848e6f12fc7838001c41cf0816de412792c",
        "0.33.0": "9dd81f806018307e4b6a901546078441716224c67236080c235b37441159fe6b",
    },
    _SAMPLE + "logprob:LogprobTokenIdsState": {
        "0.26.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.28.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.29.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.30.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.31.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.32.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
        "0.33.0": "eda49689a58e177fa7c5c74e9b049941f37ef003479a408ec5ae8c05982305f1",
    },
    _SAMPLE + "thinking_budget:ThinkingBudgetState": {
        "0.28.0": "d51237079d9026214e10c6e1f5e1cf7ed9e1acec220e3b4c1747af3924e8c4c5",
        "0.29.0": "d51237079d9026214e10c6e1f5e1cf7ed9e1acec220e3b4c1747af3924e8c4c5",
        "0.30.0": "d51237079d9026214e10c6e1f5e1cf7ed9e1acec220e3b4c1747af3924e8c4c5",
        "0.31.0": "adb7f7f8ac9458a91283f2254c6ed9f7dcdda8b4625028f57a9c6b4a9a81e7da",
        "0.32.0": "adb7f7f8ac9458a91283f2254c6ed9f7dcdda8b4625028f57a9c6b4a9a81e7da",
        "0.33.0": "adb7f7f8ac9458a91283f2254c6ed9f7dcdda8b4625028f57a9c6b4a9a81e7da",
    },
    _SAMPLE + "trace_replay:TraceReplayState": {
        "0.29.0": "5157e45b080a219e2202de00905096783e75450f606f762deb31a4169d19984f",
        "0.30.0": "5157e45b080a219e2202de00905096783e75450f606f762deb31a4169d19984f",
        "0.31.0": "5157e45b080a219e2202de00905096783e75450f606f762deb31a4169d19984f",
        "0.32.0": "5157e45b080a219e2202de00905096783e75450f606f762deb31a4169d19984f",
        "0.33.0": "5157e45b080a219e2202de00905096783e75450f606f762deb31a4169d19984f",
    },
    _BUFFERS + "UvaBufferPool": {
        "0.26.0": "e048de6c10bccd1f0dd0719cff991cae87eac8d20c280fe01bb3765c2069e458",
        "0.28.0": "e048de6c10bccd1f0dd0719cff991cae87eac8d20c280fe01bb3765c2069e458",
        "0.29.0": "e048de6c10bccd1f0dd0719cff991cae87eac8d20c280fe01bb3765c2069e458",
        "0.30.0": "d2c9e814f065272e038ae0c3b7a6a5686d47645ad805c0e37587bc9688e35595",
        "0.31.0": "d2c9e814f065272e038ae0c3b7a6a5686d47645ad805c0e37587bc9688e35595",
        "0.32.0": "d2c9e814f065272e038ae0c3b7a6a5686d47645ad805c0e37587bc9688e35595",
        "0.33.0": "d2c9e814f065272e038ae0c3b7a6a5686d47645ad805c0e37587bc9688e35595",
    },
    _BUFFERS + "UvaBackedTensor": {
        "0.26.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.28.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.29.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.30.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.31.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.32.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
        "0.33.0": "708e8bb4b5f1e5b7d1407b7145272385c4cb42da80e9071ae95c13e1649acd37",
    },
    _BUFFERS + "StagedWriteTensor": {
        "0.26.0": "d818acee9e38180022f3e85d08bb40407d1aff2336ceb5bedf5bfa298771d70f",
        "0.28.0": "d818acee9e38180022f3e85d08bb40407d1aff2336ceb5bedf5bfa298771d70f",
        "0.29.0": "d818acee9e38180022f3e85d08bb40407d1aff2336ceb5bedf5bfa298771d70f",
        "0.30.0": "8d63af935b0cbc2e89b74e39ca726db0f0a206da2bb4ea27306fac02d07ca56f",
        "0.31.0": "8d63af935b0cbc2e89b74e39ca726db0f0a206da2bb4ea27306fac02d07ca56f",
        "0.32.0": "8d63af935b0cbc2e89b74e39ca726db0f0a206da2bb4ea27306fac02d07ca56f",
        "0.33.0": "0044a60039a5fe2f8c68252c29d33829246194bcb1b21b8ec3893c39ae62e018",
    },
    _GPU + "model_runner:GPUModelRunner.add_requests": {
        "0.26.0": "6c6c142a6202950e02f6d8c90388bdfcc2b3abb49a635b18f10d42903e9917ce",
        "0.28.0": "fc5a9dde9d0bbd358ff9f2909457563975f4bb99d5625aed68ac1f6397ded374",
        "0.29.0": "18652fc35dd126fe81cf5b3491ae5c6adb6312c8adba3e886ef8e2f97dbf2300",
        "0.30.0": "32b0ca1493e93a78b6e77ed74d4abed4c18f1e215357269663fb4a457e4bf0e6",
        "0.31.0": "8321187d017efc9963387bd11d4943980b27c2782e4e210fd082f25bcdd147c3",
        "0.32.0": "8321187d017efc9963387bd11d4943980b27c2782e4e210fd082f25bcdd147c3",
        "0.33.0": "8321187d017efc9963387bd11d4943980b27c2782e4e210fd082f25bcdd147c3",
    },
}
