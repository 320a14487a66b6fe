"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version."""

from __future__ import annotations

_MODEL = "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model."
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.dflash.speculator:DFlashSpeculator."
_ATTENTION = "vllm.v1.attention."
_STORED = _ATTENTION + "ops.triton_reshape_and_cache_flash:"
PRECOMPUTE = _MODEL + "precompute_and_store_context_kv"
OF_GRAPHS = _SPECULATOR + "_precompute_context_kv"

SOURCES: dict[str, dict[str, str]] = {
    PRECOMPUTE: {
        "0.26.0": "bc9ec66b7684ff1360cc2434d594a527f035e8cca4b8b7ba05c00acba8107bbe",
        "0.28.0": "bc9ec66b7684ff1360cc2434d594a527f035e8cca4b8b7ba05c00acba8107bbe",
        "0.29.0": "bc9ec66b7684ff1360cc2434d594a527f035e8cca4b8b7ba05c00acba8107bbe",
        "0.30.0": "bc9ec66b7684ff1360cc2434d594a527f035e8cca4b8b7ba05c00acba8107bbe",
        "0.31.0": "79ff512a05a17c49ffb0e0bd64a543d9a72600757159094f603bf8eb8156294d",
        "0.32.0": "79ff512a05a17c49ffb0e0bd64a543d9a72600757159094f603bf8eb8156294d",
        "0.33.0": "79ff512a05a17c49ffb0e0bd64a543d9a72600757159094f603bf8eb8156294d",
    },
    OF_GRAPHS: {
        "0.31.0": "6d67dc856e8ae01e3fec746b39abbdbd890bda942e00be56371143400db29323",
        "0.32.0": "6d67dc856e8ae01e3fec746b39abbdbd890bda942e00be56371143400db29323",
        "0.33.0": "6d67dc856e8ae01e3fec746b39abbdbd890bda942e00be56371143400db29323",
    },
    _MODEL + "_project_context_kv": {
        "0.26.0": "6760f2cd51274d93904b24e0f3f79cb1fe90983c9c513fa3161f8d83b3743364",
        "0.28.0": "6760f2cd51274d93904b24e0f3f79cb1fe90983c9c513fa3161f8d83b3743364",
        "0.29.0": "6760f2cd51274d93904b24e0f3f79cb1fe90983c9c513fa3161f8d83b3743364",
        "0.30.0": "6760f2cd51274d93904b24e0f3f79cb1fe90983c9c513fa3161f8d83b3743364",
        "0.31.0": "4af95b255d571c79990f0f95143b768b474373e97afeceb4128cc0f5dc2c8b5c",
        "0.32.0": "4af95b255d571c79990f0f95143b768b474373e97afeceb4128cc0f5dc2c8b5c",
        "0.33.0": "4af95b255d571c79990f0f95143b768b474373e97afeceb4128cc0f5dc2c8b5c",
    },
    _MODEL + "_normalize_context_k": {
        "0.26.0": "7c4a2d8bb98a4c7f72fd636fb5a5cacb940dd2513b93fbddbf28ff02d953fdc2",
        "0.28.0": "7c4a2d8bb98a4c7f72fd636fb5a5cacb940dd2513b93fbddbf28ff02d953fdc2",
        "0.29.0": "7c4a2d8bb98a4c7f72fd636fb5a5cacb940dd2513b93fbddbf28ff02d953fdc2",
        "0.30.0": "b7577bcb0528579ecd2cda284972e56c11a76589d885ba3276419dd4e33eff1a",
        "0.31.0": "b7577bcb0528579ecd2cda284972e56c11a76589d885ba3276419dd4e33eff1a",
        "0.32.0": "7c4a2d8bb98a4c7f72fd636fb5a5cacb940dd2513b93fbddbf28ff02d953fdc2",
        "0.33.0": "7c4a2d8bb98a4c7f72fd636fb5a5cacb940dd2513b93fbddbf28ff02d953fdc2",
    },
    _MODEL + "_build_context_kv_buffers": {
        "0.26.0": "e6c3eaee863438c8bb96b99be438ac5cc95743c207c1dd7c2fd6e9f1a4e70ef8",
        "0.28.0": "e6c3eaee863438c8bb96b99be438ac5cc95743c207c1dd7c2fd6e9f1a4e70ef8",
        "0.29.0": "e6c3eaee863438c8bb96b99be438ac5cc95743c207c1dd7c2fd6e9f1a4e70ef8",
        "0.30.0": "e6c3eaee863438c8bb96b99be438ac5cc95743c207c1dd7c2fd6e9f1a4e70ef8",
        "0.31.0": "e8bf677ac742203ada6535d836eca5fd3d59a8b1b11e20de8570d517d7e67b6f",
        "0.32.0": "e8bf677ac742203ada6535d836eca5fd3d59a8b1b11e20de8570d517d7e67b6f",
        "0.33.0": "e8bf677ac742203ada6535d836eca5fd3d59a8b1b11e20de8570d517d7e67b6f",
    },
    _MODEL + "_build_fused_kv_buffers": {
        "0.26.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.28.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.29.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.30.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.31.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.32.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
        "0.33.0": "bdc093254db47a5426756bbfa2b4fbe62f5f666b5411f926ecda191147096120",
    },
    _SPECULATOR + "_num_graph_context_tokens": {
        "0.31.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
        "0.32.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
        "0.33.0": "d5c18a91d2aa9bd79164b6511125ff775827b3c8c07b55f79c87bfe9c08c7e88",
    },
    _ATTENTION + "backends.triton_attn:TritonAttentionImpl.do_kv_cache_update": {
        "0.26.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.28.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.29.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.30.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.31.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.32.0": "ab4e8b0582a46058c0e544b5282ee9365bd95b686fa70b4f4e246a175bcbab14",
        "0.33.0": "c5d1487478514760b0c72305f2f370bb892dc3f5c5613fda5544152ce0e843df",
    },
    _ATTENTION + "backends.flash_attn:FlashAttentionImpl.do_kv_cache_update": {
        "0.26.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.28.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.29.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.30.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.31.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.32.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
        "0.33.0": "406220a1ba8445df16c8747072393060fc4ce3a360364588569ff8587e025b55",
    },
    _STORED + "triton_reshape_and_cache_flash": {
        "0.26.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.28.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.29.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.30.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.31.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.32.0": "c463a008bed172a421f22185b4b37106f858c9e0550685ce7642173c75812a72",
        "0.33.0": "9d2dac082bcb125ca43830c4dea1a7490b5b2ac74b23c6b7631dd98ed534d15d",
    },
    _STORED + "reshape_and_cache_kernel_flash": {
        "0.26.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.28.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.29.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.30.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.31.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.32.0": "2d133510cd00f1d0d640a4c5d0ef4e56a167b6444db97ef70631847a78bcf156",
        "0.33.0": "82a90767e228a49e968ffe7318a61d3e3a1614b53dcdf7e3ca1607d64e0f211c",
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
