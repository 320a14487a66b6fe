"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version."""

from __future__ import annotations

_GPU = "vllm.v1.worker.gpu."
_DFLASH_MODULE = _GPU + "spec_decode.dflash.speculator:"
_DFLASH = _DFLASH_MODULE + "DFlashSpeculator."
_DRAFT_MODEL = _GPU + "spec_decode.speculator:DraftModelSpeculator."

PROPOSE = _DFLASH + "propose"
DISPATCH = _GPU + "dp_utils:dispatch_cg_and_sync_dp"
BUILD = _DFLASH + "_build_draft_attn_metadata"
BUILD_UNIFORM = _DRAFT_MODEL + "_build_uniform_attn_metadata"
SETTLE = _DRAFT_MODEL + "_prepare_eplb_forward"
CONTEXT = _DFLASH + "_num_graph_context_tokens"
CALLED_DISPATCH = _DFLASH_MODULE + "dispatch_cg_and_sync_dp"
"""`DISPATCH` where the drafter looks it up."""

SOURCES: dict[str, dict[str, str]] = {
    PROPOSE: {
        "0.26.0": "b82fcff527068b42eda004e806cb228b7a550712a7a8f25127e9024d58954be7",
        "0.28.0": "9f0135adb6a87712931528215ba374f0c1b324116f83e27834a5e82198f4f50b",
        "0.29.0": "5f7b2a53973a3b33735e15f5bd00b21724be299b18301ce9928878bbeeb93bf4",
        "0.30.0": "1229125f328dd2d236e6557795bc8d7736deb81fc6537f28fe39113f44b7450e",
        "0.31.0": "0282589ad8eba8d01f534676aebe7e1b210e0a13321de9398e418ed5ad4d5e0b",
        "0.32.0": "3625deb66c00635e60ed7a6893a30ca2f1137131ee75ce7a5de445c145bde950",
        "0.33.0": "b63f4ad371bec2be33179a522569eb226d1140d6428a71581c4bc829543f2b42",
    },
    DISPATCH: {
        "0.26.0": "9e9931c4d76daa0bfb12f6fbd32d1bef3cdfd84c2c3038de5e6ef2ae8c16c4a1",
        "0.28.0": "f4357c06f0676c5c163e28861593769dc024a6d645275ef7d82d6f4209d0453b",
        "0.29.0": "3dfefb3475123b43a0f84b8b3ff62c8bdd4f99be046dda70a7623a5993fd3e63",
        "0.30.0": "f0dbc872ba28d64542e52bf70adbb1dbf93a0463804a2590ee830f9671946ddd",
        "0.31.0": "e04a6ded862e9f3d133f7feb5aeb9ba6a7a4785645720c2153bad452340321df",
        "0.32.0": "7b73eb8cd9b2852d38383cf7899453f2f77b64813cb39e4614be72bbec37be5e",
        "0.33.0": "d8a28dfab9d89cf83c49ed4ca157020339f43020a040ff2144a53d559a01bf64",
    },
    BUILD: {
        "0.26.0": "77de88d685f5424fd3490b97eddc2131fef32f994136420c8a9495a039233a56",
        "0.28.0": "db44dc5eb16d1432bc9869074e9bb77aeb1392281cc8e520d931251357548678",
        "0.29.0": "e7ba253df4626663460563f8afe1aebff6db5a1a287766014400961165eb8a5f",
    },
    BUILD_UNIFORM: {
        "0.30.0": "f02b948bd8c9ddc42b7fe32516e292b7ec22dd1fabaf1a878712eb394f689fdd",
        "0.31.0": "f02b948bd8c9ddc42b7fe32516e292b7ec22dd1fabaf1a878712eb394f689fdd",
        "0.32.0": "f02b948bd8c9ddc42b7fe32516e292b7ec22dd1fabaf1a878712eb394f689fdd",
        "0.33.0": "f02b948bd8c9ddc42b7fe32516e292b7ec22dd1fabaf1a878712eb394f689fdd",
    },
    SETTLE: {
        "0.26.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.28.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.29.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.30.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.31.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.32.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
        "0.33.0": "ce5623fa02404ee8c1de59b9df0a7631823fd24170c7fd021ad4d327220ecede",
    },
    CONTEXT: {
        "0.31.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
        "0.32.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
        "0.33.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
    },
    _DRAFT_MODEL + "_build_draft_attn_metadata": {
        "0.26.0": "91e20c51f23678d992ac702c5cd92a824e365e63a9b0e49f714e9ac6c78d938f",
        "0.28.0": "084781c6f3d18fd3e636c7dd9b0520a6f815ae51792eb65d44219b7f8180f812",
        "0.29.0": "489dcbc0c019ddd25f9d284b2c0d8f729957c8b710a95459c7d014a0c6c25c02",
    },
    _DRAFT_MODEL + "_build_attn_metadata": {
        "0.30.0": "bde1f6f3d19544e31c99c47b3e2000fd18e990c5bf0c8bafe7c3bd3d2c7f55dc",
        "0.31.0": "26058fd6d81bba1f78b51f8f8cc3a54c2ddb1f9db6702e8a07284da0616bfb00",
        "0.32.0": "ca59e6c88135a4c5b723e9cdcecb361288bccd0e5a5ad69100463b07ad7050b0",
        "0.33.0": "49c5b3ca7669d89ae4a14af14c3c2765adad1df399fc3b55d018aa6857473f26",
    },
    _GPU + "attn_utils:build_slot_mappings_by_layer": {
        "0.26.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.28.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.29.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.30.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.31.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.32.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
        "0.33.0": "ff47499588f2e2cbe9ee6b4e971ab5e3a7aa5fd270289907ed0c7ace507c254c",
    },
    _GPU + "attn_utils:build_attn_metadata": {
        "0.26.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.28.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.29.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.30.0": "7cde4db095de0443b5448a14de5c2945e0b3809585905638d3e36b1e466b5a41",
        "0.31.0": "b8881a428cee2a56a95c2e5d43dab376cb2fe1d8d5dfaba353a132710ca2440b",
        "0.32.0": "b7faabe5c799633ecf6f4ee767c989c6e1dd836d7453f01a3e02c239ea62da12",
        "0.33.0": "b7faabe5c799633ecf6f4ee767c989c6e1dd836d7453f01a3e02c239ea62da12",
    },
    _GPU + "cudagraph_utils:CudaGraphManager.run_fullgraph": {
        "0.26.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.28.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.29.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.30.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.31.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.32.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.33.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
    },
    "vllm.v1.attention.backends.triton_attn:TritonAttentionMetadataBuilder.build": {
        "0.26.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.28.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.29.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.30.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.31.0": "e4a7012807e5e5679072d36398ac40ca0b0b9201d33cb731fe3baa2100b8c0bb",
        "0.32.0": "b52c7d32f5f5edf19bd97c45479411c2fcc98eb3a47d12aeca1960a447245c25",
        "0.33.0": "b52c7d32f5f5edf19bd97c45479411c2fcc98eb3a47d12aeca1960a447245c25",
    },
}
