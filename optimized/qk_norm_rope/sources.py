"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version."""

from __future__ import annotations

_LAYERS = "vllm.model_executor.layers."
_ROTARY = _LAYERS + "rotary_embedding.base:RotaryEmbedding"
FORWARD = "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Attention.forward"
MANAGER = "vllm.v1.worker.gpu.spec_decode.dflash.speculator:DFlashSpeculator.init_cudagraph_manager"

SOURCES: dict[str, dict[str, str]] = {
    FORWARD: {
        "0.26.0": "6b3ab49ade555c12fddbcde045f11abe602d0b4171624ff96b1081e36e5caba3",
        "0.28.0": "6b3ab49ade555c12fddbcde045f11abe602d0b4171624ff96b1081e36e5caba3",
        "0.29.0": "6b3ab49ade555c12fddbcde045f11abe602d0b4171624ff96b1081e36e5caba3",
        "0.30.0": "6b3ab49ade555c12fddbcde045f11abe602d0b4171624ff96b1081e36e5caba3",
        "0.31.0": "58db284632baef346f565ef2ed088130cb117f3fc6332dcaa88bb2c044786071",
        "0.32.0": "58db284632baef346f565ef2ed088130cb117f3fc6332dcaa88bb2c044786071",
        "0.33.0": "58db284632baef346f565ef2ed088130cb117f3fc6332dcaa88bb2c044786071",
    },
    MANAGER: {
        "0.26.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.28.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.29.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.30.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.31.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.32.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
        "0.33.0": "a8139c7dedc0bc5f1eeed74eaddf4d0504f6640e073a8b2ad11fcd4ee27e8e82",
    },
    _ROTARY + ".forward_cuda": {
        "0.26.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.28.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.29.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.30.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.31.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.32.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
        "0.33.0": "b9f9a5bc20818d9dab5b6d03d0717b0b8a07c724e4ef3c260aabca41772ef02f",
    },
    _ROTARY + "Base._match_cos_sin_cache_dtype": {
        "0.26.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.28.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.29.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.30.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.31.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.32.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
        "0.33.0": "451722041b22b44e82528d5a794291fc0a526fce9f08645e47ad814db773890a",
    },
    _LAYERS + "layernorm:RMSNorm.forward_cuda": {
        "0.26.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.28.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.29.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.30.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.31.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.32.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
        "0.33.0": "e86da8b93c37a6fd0767df873d68a936d1844bb6a5ee7f2bd47f103af89a57d4",
    },
    _LAYERS + "layernorm:RMSNorm.forward_native": {
        "0.26.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.28.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.29.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.30.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.31.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.32.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
        "0.33.0": "1f37da144470704045395122b8fd71762bed08707ae33a6173be258a8ad2cad5",
    },
    "vllm.kernels.vllm_c:rms_norm": {
        "0.26.0": "9ab427d52376291fc73151b1b525c4012a3608b5c6f149bc98f5d5e55062d6ca",
        "0.28.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
        "0.29.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
        "0.30.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
        "0.31.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
        "0.32.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
        "0.33.0": "e7799acd7c07e2df8502ed202990530997527ae03c2f13bcb0b05ca72b740448",
    },
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.run_fullgraph": {
        "0.26.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.28.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.29.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.30.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.31.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.32.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
        "0.33.0": "af0da51c4ca27ed318af8d50baaaec3074de33820b2f1be4a6b75de1510a9bb3",
    },
}
