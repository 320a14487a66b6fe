"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version."""

from __future__ import annotations

_BACKENDS = "vllm.v1.attention.backends."
BUILD = _BACKENDS + "mamba_attn:BaseMambaAttentionMetadataBuilder._compute_common_metadata"
UPDATE = _BACKENDS + "mamba_attn:BaseMambaAttentionMetadataBuilder._update_metadata_for_cudagraph_capture"
SPLIT = _BACKENDS + "utils:split_decodes_and_prefills"
BLOCK_TABLE = _BACKENDS + "utils:mamba_get_block_table_tensor"

SOURCES: dict[str, dict[str, str]] = {
    BUILD: {
        "0.26.0": "842beaa3f3e4fe9f3abff1bd944a7e35cef2662380e1a664cbe57c6d181955f6",
        "0.28.0": "9ebae78998e03b1c7805091a2c073e98c7aefe699754f8505e2e4a4a5e753cf7",
        "0.29.0": "9ebae78998e03b1c7805091a2c073e98c7aefe699754f8505e2e4a4a5e753cf7",
        "0.30.0": "d2ac1a92dd11966a2d0ec404332bce0a02c9f8f63f42319d27d02b9b3a4ecbe2",
        "0.31.0": "bd3a191ac6c21296d7e3c830d096138d2bb9ae8c2de1ac72e756cb5dbe8c7b2c",
        "0.32.0": "ef7b6a0bcb71a3556de0f426b9b9d314b0d0ad3d195e87b7d4894af504825066",
        "0.33.0": "ef7b6a0bcb71a3556de0f426b9b9d314b0d0ad3d195e87b7d4894af504825066",
    },
    SPLIT: {
        "0.26.0": "26f351f6370dc36a82d9818e0593e9fe825c9321e08bc9e8cb320c55949e5c29",
        "0.28.0": "26f351f6370dc36a82d9818e0593e9fe825c9321e08bc9e8cb320c55949e5c29",
        "0.29.0": "26f351f6370dc36a82d9818e0593e9fe825c9321e08bc9e8cb320c55949e5c29",
        "0.30.0": "26f351f6370dc36a82d9818e0593e9fe825c9321e08bc9e8cb320c55949e5c29",
        "0.31.0": "f007f7c52cb563c95edb6e3bf121d2bf6fd0be502d0faf9e961c36869d90ab34",
        "0.32.0": "f007f7c52cb563c95edb6e3bf121d2bf6fd0be502d0faf9e961c36869d90ab34",
        "0.33.0": "f007f7c52cb563c95edb6e3bf121d2bf6fd0be502d0faf9e961c36869d90ab34",
    },
    BLOCK_TABLE: {
        "0.26.0": "c8bdf4b7555ab64b4a356a75882afd6fe02da40479deb1984a76a98bf61684ff",
        "0.28.0": "c8bdf4b7555ab64b4a356a75882afd6fe02da40479deb1984a76a98bf61684ff",
        "0.29.0": "c8bdf4b7555ab64b4a356a75882afd6fe02da40479deb1984a76a98bf61684ff",
        "0.30.0": "c8bdf4b7555ab64b4a356a75882afd6fe02da40479deb1984a76a98bf61684ff",
        "0.31.0": "d8334eaa641e63fc8da235a856317c2f7f56551c1719a309c3f430d4da853629",
        "0.32.0": "335941a71af81619d8bae7dcab495de176ba7ac7b6c6dba3bc25ca9a60760004",
        "0.33.0": "782b3810358b14a97ea43b635b4aa9d6932aa68452eaeb9cc7152427f738a5b4",
    },
    UPDATE: {
        "0.26.0": "475ea80306362fcf2d068fd7be2f0caa6aa5e9f5924a6f89e3410c08bc68897e",
        "0.28.0": "b832bc605c1ae7fd9528967acb3037feb6555005cfd28fde886ed60f46415828",
        "0.29.0": "b832bc605c1ae7fd9528967acb3037feb6555005cfd28fde886ed60f46415828",
        "0.30.0": "b5c9f8d95ade2ccb1cb6f0eed37eae02902e69f5c144bd93a9905c0b0568e45a",
        "0.31.0": "2b6130c794a2f67149cdd9ffbdb11420a6cac5cd0b1e87a4a66c184a88fc3e95",
        "0.32.0": "9de8815a47686589b171140aaa99e5edec9bd576fec2a8957edb56c2d8769320",
        "0.33.0": "9de8815a47686589b171140aaa99e5edec9bd576fec2a8957edb56c2d8769320",
    },
}
