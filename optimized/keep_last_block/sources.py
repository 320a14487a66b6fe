"""The vLLM functions that are replaced or relied on, and the sha256 of their sources in each known version.

Those that are not replaced are all that write or read which groups drop a block, as far as caching goes.
"""

from __future__ import annotations

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."
_COORDINATORS = "vllm.v1.core.kv_cache_coordinator:"
_MANAGERS = "vllm.v1.core.single_type_kv_cache_manager:"

ASK = _SCHEDULER + "_select_waiting_queue_for_scheduling"
LOCAL = _SCHEDULER + "_get_local_prefix_cache_hit"
FIND = "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks"
SPLIT = _SCHEDULER + "_mamba_block_aligned_split"

SOURCES: dict[str, dict[str, str]] = {
    ASK: {
        "0.26.0": "36e0e42a711322277a2e82d23f9e4f81f093f4c60e11267c2db14bf91512856d",
        "0.28.0": "36e0e42a711322277a2e82d23f9e4f81f093f4c60e11267c2db14bf91512856d",
        "0.29.0": "36e0e42a711322277a2e82d23f9e4f81f093f4c60e11267c2db14bf91512856d",
        "0.30.0": "36e0e42a711322277a2e82d23f9e4f81f093f4c60e11267c2db14bf91512856d",
    },
    LOCAL: {
        "0.28.0": "3495ddb7de463024f5b312c7e122ff554727fcb1dc4e094de43bfd10297c59e3",
        "0.29.0": "3495ddb7de463024f5b312c7e122ff554727fcb1dc4e094de43bfd10297c59e3",
        "0.30.0": "3495ddb7de463024f5b312c7e122ff554727fcb1dc4e094de43bfd10297c59e3",
        "0.31.0": "3495ddb7de463024f5b312c7e122ff554727fcb1dc4e094de43bfd10297c59e3",
        "0.32.0": "3495ddb7de463024f5b312c7e122ff554727fcb1dc4e094de43bfd10297c59e3",
    },
    FIND: {
        "0.26.0": "b501a4d47f923685a553223fd80319f4dc5398d9881d16192cfa93d2ef6b7bd7",
        "0.28.0": "9a7d9a45fc00bd1d19d0829284e44615e7bfffd7f6267588cf7c6c48790bca25",
        "0.29.0": "9138a2e949d56bd87764bbeed7cead7611e315729ffb7ab1bb849bf8b6990422",
        "0.30.0": "2a90cbfde1ec32a38d93bba796d7d081a44e79c676dc5146b18f98e88b48f0ef",
        "0.31.0": "77f434d88d573bfe05905a20df26ff51a86156214cf297ff9bbe5d5f05f32d07",
        "0.32.0": "77f434d88d573bfe05905a20df26ff51a86156214cf297ff9bbe5d5f05f32d07",
    },
    SPLIT: {
        "0.26.0": "97be3747fba891698ee87a642ebe94d7d254a054074dd57876f1a472c68c4639",
        "0.28.0": "712bf8266d6ce2a371009a9b484b62258bc99699314d4224c0cd6a76fbfb27f0",
        "0.29.0": "fe3e2f4166e41974b07bbb22807a152fd0a8d193452fadb19ee63139b940f414",
        "0.30.0": "7ac71f4f18b63e9d62deeb7d90fa0fda3e32f8916c1423a9add39c57cdeeedd2",
        "0.31.0": "5e6e2e57817d43331e15049bc6b197c3c3ab2c281777635a7265917634f6bf31",
        "0.32.0": "b2a08c774ae495bfdd509380e8d14ccdd0bd2c5b70219720a926059a0d8eb9b0",
    },
    _SCHEDULER + "__init__": {
        "0.26.0": "6ba6e7c3a2cae5ee9c6fdf76fd356a700caca38e82bc761a52f3082a3c7040ff",
        "0.28.0": "3d842400402d59ee6978f999b65d9f5bdf4c071a71244a899d621bd3654975dc",
        "0.29.0": "59744fa664650582e09b80b0f057f99f266a2e485315bb66b63a23b107dd93fe",
        "0.30.0": "747b0f0af0f0e89c365fb6a93b619761d5cdc8dc9995a0ed533505f094d6d838",
        "0.31.0": "b4de9d2b5575395b0b9818c6130bec11020c9aa2556e6c34ca47a21131f1b614",
        "0.32.0": "c026802456720b432a00b7a4cc2dfb14e9e90d6a9a0711aa8c41c76bf0319703",
    },
    _COORDINATORS + "KVCacheCoordinator.__init__": {
        "0.26.0": "47e83893925c44da5455aa8797033f4cd008102ac5eebc2e60455d9d36ed4b61",
        "0.28.0": "49a77b1c4204e675db5b46d06b36c0d5e5e8a14013406ca5038dac13502f6668",
        "0.29.0": "8b52016a93badd0026fe8019f79be4d0cdd672d4e3505b711b451232abef361c",
        "0.30.0": "d61cb10258bbf5f104c8ffc16ed7f65d813961ad7f1f8cc6ebe6e153654ebf06",
        "0.31.0": "db53dbf1b7f337e6a275741b8c68177507e17a8a7efc9d65bea1a7cfd6d17477",
        "0.32.0": "db53dbf1b7f337e6a275741b8c68177507e17a8a7efc9d65bea1a7cfd6d17477",
    },
    _COORDINATORS + "KVCacheCoordinator.cache_blocks": {
        "0.26.0": "e8ae7cd1a20be5d07435204497954bbcb7ab87b0a718a013c6349c37ce047484",
        "0.28.0": "affffd2e0db4a21aefc77705ef7a32b5a643b81b69238a771daf8333d1cca693",
        "0.29.0": "affffd2e0db4a21aefc77705ef7a32b5a643b81b69238a771daf8333d1cca693",
        "0.30.0": "8089361d83fd63a499c9a6ee63f3d03cf48f3ad8d8d4a77a6756d206d866ef6a",
        "0.31.0": "20dfc93ddf238212aee080f6ba23840a95ea40268d8b89aad376ef9ec0570fb6",
        "0.32.0": "8a801b2adf06ab1a3716e039effe0a7151068a0843dbc9b6eaa4822570b26892",
    },
    _COORDINATORS + "UnitaryKVCacheCoordinator.find_longest_cache_hit": {
        "0.26.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
        "0.28.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
        "0.29.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
        "0.30.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
        "0.31.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
        "0.32.0": "3b3bfd695ba8615696264b980b51ea19e42eb4b35c9a143dc46d0fedb25ff660",
    },
    _COORDINATORS + "HybridKVCacheCoordinator.find_longest_cache_hit": {
        "0.26.0": "0ad6a49678cd069e0713d2b253381bae490a4199e628187c12fa4039afd773a6",
        "0.28.0": "0ad6a49678cd069e0713d2b253381bae490a4199e628187c12fa4039afd773a6",
        "0.29.0": "96ac6508059245898e8566be687097fdba104329b7de3123ec8e840236e542a5",
        "0.30.0": "2d2b5356f44f7cf22044685e7833eac8c0a24b47c6beddc2a578ca857ca1c5ef",
        "0.31.0": "41cc411e2b8f94486a7022e2b298f55abcf6813a99d91dd0171bc5e094bf5d71",
        "0.32.0": "0d109ac725cf33e2100d6a1a39dd9116d82429cd990917fceb06d1d89010eed4",
    },
    _COORDINATORS + "HybridKVCacheCoordinator.verify_and_split_kv_cache_groups": {
        "0.26.0": "e00f3522da8410dfcfe1df9ed2bd2c36aca6ec2a23087093f01146f5667561dd",
        "0.28.0": "816d0cb4100e6d7907579f4afefc5656c900a6b8e84497bdba26bfe7b9c850e2",
        "0.29.0": "b06556a72c8df88587e40babb2d6e5cfdc834c29ae76c2badcca0d262dc1388b",
        "0.30.0": "d75e585356ba002c8460647b8817d3cbe881e21ff5230ce1c36bba1b1f3b4826",
        "0.31.0": "cf681df1e7c5a9452b148799a5e9e225717d22eeacd9921ad517a1485c5aca53",
        "0.32.0": "e0c0c6ea97c198c8dcf6c3f46840797c26a902cdade5f4d0656958348be631d7",
    },
    _COORDINATORS + "HybridKVCacheCoordinator.cache_blocks": {
        "0.26.0": "47fe18884cb03bbd54488b05802c95f3ef77d3d1a485933784fa0c962df4f041",
        "0.28.0": "ca1384e957de1727c69fd76c2df3f5717737f56db43bb56616c955ccd2078b02",
        "0.29.0": "ca1384e957de1727c69fd76c2df3f5717737f56db43bb56616c955ccd2078b02",
        "0.30.0": "368ded76756e4d1851ce347bd20362f6ffc7b68789ce3f23c258356869bcadc4",
        "0.31.0": "368ded76756e4d1851ce347bd20362f6ffc7b68789ce3f23c258356869bcadc4",
    },
    _COORDINATORS + "HybridKVCacheCoordinator.get_num_cacheable_tokens": {
        "0.32.0": "4b00f5b368d98de1e20790992820757d35562748ad9d72e72b8fa561d0e48098",
    },
    _MANAGERS + "SingleTypeKVCacheManager.cache_blocks": {
        "0.26.0": "03520a72dfa386ab46608d255b638412fea35b7e47009945d9796ed88730d8b1",
        "0.28.0": "03520a72dfa386ab46608d255b638412fea35b7e47009945d9796ed88730d8b1",
        "0.29.0": "21d844c61f349f04c7144edacd15255c1d37cf72103c16a680bc3d8651a189b1",
        "0.30.0": "3a0824b5079d857fe9702d8fbdc74131186eea4f0c7c045419a128a5d7cf3d9a",
        "0.31.0": "30537db8126e0524031015582e7d3278919ca1c016dd28a3e0ddbeaca986955c",
        "0.32.0": "973ea9fec0745c956422dacea977ec6460c54a775ef23af40babc32236da8b61",
    },
    _MANAGERS + "MambaManager._cache_partial_tail_block": {
        "0.26.0": "62f17abb2c13ce275a368ae642f919f90aefe8e77f8fbd209462c02cdea55ceb",
        "0.28.0": "28c1b3f9cdbe65cbc3730ee0e0ed91866a5076e419deabea30d5996d144be82a",
        "0.29.0": "28c1b3f9cdbe65cbc3730ee0e0ed91866a5076e419deabea30d5996d144be82a",
        "0.30.0": "08aed0f79c128ae98866fb9235b92ce6f07a1c9e49f639f4274c31192d2452bb",
        "0.31.0": "df02f872327d7a3d98e69087baa6f8ff53fc94ca66b5a28c6ecc6bb06394b9d8",
        "0.32.0": "9b239358d444c517b01607e32411c80e6e27a84ae8be80e72d2790f57e10cd2a",
    },
    _MANAGERS + "MambaManager._needs_internal_checkpoint": {
        "0.29.0": "839241f6e5e1015f43e65e613e2dfd19a3851a034a9f8bb9e8114bc247a9dc40",
        "0.30.0": "90f41b02e9ed1d4ad341fb1e9edc126f34ab4fd5a744d7fc5087bb90697693ed",
        "0.31.0": "e2e45e2a0c68b5dac2b09b7ff65442b1040c2bd98bd38e5c5e1978c34314703b",
        "0.32.0": "e2e45e2a0c68b5dac2b09b7ff65442b1040c2bd98bd38e5c5e1978c34314703b",
    },
    _MANAGERS + "MambaManager.get_num_blocks_to_allocate": {
        "0.26.0": "2bb1e8d0992752e7f65c47ea12ef15a8c0c72599b1e1a15657d68a3c7753f19f",
        "0.28.0": "2bb1e8d0992752e7f65c47ea12ef15a8c0c72599b1e1a15657d68a3c7753f19f",
        "0.29.0": "0072b6bbbece640428a5e4cd5208bd181037ac5e459842e323135f707b093481",
        "0.30.0": "955dd702e616cb866e6f74c8ff711de98bf2368fc4523bb428eb7d6446a20414",
        "0.31.0": "17013b3340343b8a50f0c0f23fffe647a419162cd28f5ea620202f7b0cc832d5",
        "0.32.0": "1cb46983bbf184ff94e9b9257d67537f7c9c28d489f23ce39c5ebb55a3ecfaec",
    },
}
