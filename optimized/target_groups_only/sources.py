"""The vLLM functions and classes that are replaced or relied on, and the sha256 of their sources in each known version.

What a step does with its metadata stands here too: nothing in it asks for that of a drafter's layer.
"""

from __future__ import annotations

_GPU = "vllm.v1.worker.gpu."
_DEFAULT = _GPU + "model_states.default:DefaultModelState"
_HYBRID = _GPU + "model_states.mamba_hybrid:MambaHybridModelState"
_DFLASH = _GPU + "spec_decode.dflash.speculator:DFlashSpeculator"
_DSPARK = _GPU + "spec_decode.dspark.speculator:DSparkSpeculator"
_DRAFTER = _GPU + "spec_decode.speculator:DraftModelSpeculator."
_UTILS = _GPU + "attn_utils:"
_RUNNER = _GPU + "model_runner:GPUModelRunner."
_PARALLEL = "vllm.config.parallel:ParallelConfig."

DEFAULT, HYBRID = _DEFAULT + ".prepare_attn", _HYBRID + ".prepare_attn"
STEP = _RUNNER + "prepare_attn"
STATES, DRAFTERS = frozenset({_DEFAULT, _HYBRID}), frozenset({_DFLASH, _DSPARK})
"""Classes that do no more with the metadata than what stands here."""

SOURCES: dict[str, dict[str, str]] = {
    DEFAULT: {
        "0.26.0": "30d27405e16f7931d9203c89a10b289efedfd3bf85151cb4489aa19f4ea96769",
        "0.28.0": "2479b7371ac1ecdb2a55eb139b8313568e714056bb8635d543dcde8dbd8644a7",
        "0.29.0": "2479b7371ac1ecdb2a55eb139b8313568e714056bb8635d543dcde8dbd8644a7",
        "0.30.0": "d81a8ca3f6592b4d0f74cd39ba2ecb97db2f42aa5df10338a913b55fbd0bfe18",
        "0.31.0": "02bca6e8c2be5a9a31beea55912d2c903ef3028e2a2efe09100206cba1b6af7c",
        "0.32.0": "02bca6e8c2be5a9a31beea55912d2c903ef3028e2a2efe09100206cba1b6af7c",
        "0.33.0": "155bae76181475d6589eead3957a8d5b8be6fbd8ab058416f40fec8e95c92579",
    },
    HYBRID: {
        "0.26.0": "7c54390f3659a3cb7b0283d80da0592311692fde688ed0291e1d2ed0871ba92b",
        "0.28.0": "7c54390f3659a3cb7b0283d80da0592311692fde688ed0291e1d2ed0871ba92b",
        "0.29.0": "b3899e109ad765051d78ddc0b0bd0881cf78e3a54abd02a60c0be2b6dbb6ead7",
        "0.30.0": "9529920cf754da2a7b6821d65b8a02d17d329dfadd999da5b9cc18c92e0a541c",
        "0.31.0": "bb71847243bccd21eb42858002c15712c183b0e6e18f80fc336cdef082eff8c7",
        "0.32.0": "b0e46b5563d5bb638393707f750b8cf2385c6ca42ef1e54032a1a76305f98efd",
        "0.33.0": "b0e46b5563d5bb638393707f750b8cf2385c6ca42ef1e54032a1a76305f98efd",
    },
    STEP: {
        "0.26.0": "cc5438d48f761b06c23f18d7477832f2fe226fa48d50728b9a5f8e29f210979f",
        "0.28.0": "cc5438d48f761b06c23f18d7477832f2fe226fa48d50728b9a5f8e29f210979f",
        "0.29.0": "cc5438d48f761b06c23f18d7477832f2fe226fa48d50728b9a5f8e29f210979f",
        "0.30.0": "cc5438d48f761b06c23f18d7477832f2fe226fa48d50728b9a5f8e29f210979f",
        "0.31.0": "da2162a643e4e6c2f256159e84310ec145f1ebf20241291d1d3a10f2c7f4a0d5",
        "0.32.0": "da2162a643e4e6c2f256159e84310ec145f1ebf20241291d1d3a10f2c7f4a0d5",
        "0.33.0": "a73828dcb06c0ce5f4dba9625ba0bc5cffc32368e927ebbcbae4b56fe6574619",
    },
    _DFLASH + ".propose": {
        "0.26.0": "b82fcff527068b42eda004e806cb228b7a550712a7a8f25127e9024d58954be7",
        "0.28.0": "9f0135adb6a87712931528215ba374f0c1b324116f83e27834a5e82198f4f50b",
        "0.29.0": "5f7b2a53973a3b33735e15f5bd00b21724be299b18301ce9928878bbeeb93bf4",
        "0.30.0": "1229125f328dd2d236e6557795bc8d7736deb81fc6537f28fe39113f44b7450e",
        "0.31.0": "0282589ad8eba8d01f534676aebe7e1b210e0a13321de9398e418ed5ad4d5e0b",
        "0.32.0": "3625deb66c00635e60ed7a6893a30ca2f1137131ee75ce7a5de445c145bde950",
        "0.33.0": "b63f4ad371bec2be33179a522569eb226d1140d6428a71581c4bc829543f2b42",
    },
    _DFLASH + ".set_attn": {
        "0.26.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.28.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.29.0": "99ec309558988ddb79ce447e09f90bb9d8da6846ccda99b4cd749c3cf609c2e1",
        "0.30.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.31.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.32.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
        "0.33.0": "968678300f8342154cbab8ee1f1d663a55972ae86a8dd205ed1ce901e2c3b799",
    },
    _DSPARK: {
        "0.26.0": "78f93dff73fecb5d0fbceab43c57b87dc2471fe6268fef55a0f85ba2876d0b93",
        "0.28.0": "ee55f41f5b8cf5c6bb8425af3a74e8e60a02510ca99d75a5afabb2540d8faf0d",
        "0.29.0": "27b34273598c0d319318cb8aab4ab20dfd93df1180b827ebaa95353437616cc4",
        "0.30.0": "16f0ad17c346230fc4bef313c36645842011920198344f91b8d6bcfeca64b701",
        "0.31.0": "ef44b404d59eb45470703a36e94e8ec87e12f73aebbc35d65b716f16f8fdc17c",
        "0.32.0": "72f9ec301d7ae0c29bb86b88c345b1337eb0e2b775b4d8ef6b19d2b398d729ca",
        "0.33.0": "e8951edc208de9c2a8840e9b97ef7d65013c4b2932d05e3b3b3a66695fe44561",
    },
    _DRAFTER + "__init__": {
        "0.26.0": "7815bbcf1f819d28108075b37ff922cc1bee89b0a7619c841d7198384e60a002",
        "0.28.0": "06eff9c871e864098be2ad6d09182a8ee3d65b22832d756f3e989d5c79a09090",
        "0.29.0": "65077affc950cd560827320c39d8c5a77379be5dfffaf35a78f1c10f1fb818d7",
        "0.30.0": "aad96dadd013d80437d5f6313ef0fe4222ca3c204c5c4ee81e77828415c6e4b2",
        "0.31.0": "f203382a506b18733003dbf08cb38c2f862ef6ce7dd1da0b92bdba0d27a46964",
        "0.32.0": "3424917215f0c417cf52a77b83e62cc3466247ae9c8f4cfe3ff876c60e40155c",
        "0.33.0": "28646a8254c69e7b06d1acc214ee66765df43a6163919dd3de2407ebc3916e9b",
    },
    _DRAFTER + "load_model": {
        "0.26.0": "fd63ef1f66fe6859194046e6f1a1e409d9898318eb9cc4a88b869a3a830483d5",
        "0.28.0": "e2c4061aab806343f1a8ec414aa2319c91a2cbefd9f6626f1ade586b49059cef",
        "0.29.0": "e2c4061aab806343f1a8ec414aa2319c91a2cbefd9f6626f1ade586b49059cef",
        "0.30.0": "44835c23a9ce71de7458d8597000fcea3362fbfeff90a31cfa4faf82e13ea2a8",
        "0.31.0": "3b62119f052a2f2bb323aec31e5e4d81a01c1f7b117de52d88128ede1c2ef3e3",
        "0.32.0": "3b62119f052a2f2bb323aec31e5e4d81a01c1f7b117de52d88128ede1c2ef3e3",
        "0.33.0": "3b62119f052a2f2bb323aec31e5e4d81a01c1f7b117de52d88128ede1c2ef3e3",
    },
    _DRAFTER + "set_attn": {
        "0.26.0": "f960864dc84cc641393ff9afe1457e917c1629d2614cd28d46b65c3ecaef1401",
        "0.28.0": "f960864dc84cc641393ff9afe1457e917c1629d2614cd28d46b65c3ecaef1401",
        "0.29.0": "f960864dc84cc641393ff9afe1457e917c1629d2614cd28d46b65c3ecaef1401",
        "0.30.0": "f960864dc84cc641393ff9afe1457e917c1629d2614cd28d46b65c3ecaef1401",
        "0.31.0": "f960864dc84cc641393ff9afe1457e917c1629d2614cd28d46b65c3ecaef1401",
        "0.32.0": "7aeef3755c345262bef2ccae74512e7cdc8ae49ff5a4a8e3d7d18e93189edcfe",
        "0.33.0": "7aeef3755c345262bef2ccae74512e7cdc8ae49ff5a4a8e3d7d18e93189edcfe",
    },
    _UTILS + "init_attn_backend": {
        "0.26.0": "88997a14afb5a0e76e8180c4fd45db51f88ed1892fddc43b16d5d33f3b006559",
        "0.28.0": "afeb5fcbb0119a65831e7fc3fe5c4c92a7ec09140a6e843f4e407c818295f3c2",
        "0.29.0": "07074ed6cc04d6c9aeb542dba5991099bde0c211e298c3860fad4d0c297de80f",
        "0.30.0": "955606b28d6aea76a22d208611cc39734f8191d8974f58234bd46909f4c94664",
        "0.31.0": "955606b28d6aea76a22d208611cc39734f8191d8974f58234bd46909f4c94664",
        "0.32.0": "d5a8acfa8ce1d0c5aeadf4fd4e322a62f0afb89fb6f36d43dcb7d0d2e9f9f6dc",
        "0.33.0": "d5a8acfa8ce1d0c5aeadf4fd4e322a62f0afb89fb6f36d43dcb7d0d2e9f9f6dc",
    },
    _UTILS + "build_attn_metadata": {
        "0.26.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.28.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.29.0": "6d68de5c5adbafe2a79518e0f797fadf0d8dea1476688ed6b33bebbf8938a5f0",
        "0.30.0": "7cde4db095de0443b5448a14de5c2945e0b3809585905638d3e36b1e466b5a41",
        "0.31.0": "b8881a428cee2a56a95c2e5d43dab376cb2fe1d8d5dfaba353a132710ca2440b",
        "0.32.0": "b7faabe5c799633ecf6f4ee767c989c6e1dd836d7453f01a3e02c239ea62da12",
        "0.33.0": "b7faabe5c799633ecf6f4ee767c989c6e1dd836d7453f01a3e02c239ea62da12",
    },
    _GPU + "model_states.recoverssm:RecoverSSMState.record_step": {
        "0.29.0": "c102082e71b060dc9c45209a028a4b7c208f0b8608b65d64d795eb5bf28b6247",
        "0.30.0": "c102082e71b060dc9c45209a028a4b7c208f0b8608b65d64d795eb5bf28b6247",
        "0.31.0": "c102082e71b060dc9c45209a028a4b7c208f0b8608b65d64d795eb5bf28b6247",
        "0.32.0": "c102082e71b060dc9c45209a028a4b7c208f0b8608b65d64d795eb5bf28b6247",
        "0.33.0": "c102082e71b060dc9c45209a028a4b7c208f0b8608b65d64d795eb5bf28b6247",
    },
    _GPU + "kv_connector:get_kv_connector": {
        "0.26.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.28.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.29.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.30.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.31.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.32.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
        "0.33.0": "bc84874885306035f290fdfc5d31f683699bdc167591fd964fb03677099a943f",
    },
    _RUNNER + "initialize_kv_cache": {
        "0.26.0": "9410fa6ae5e28c637cb65b3c65f3cbac7acb9e4eab770cd4fbf5888dd32d0e6a",
        "0.28.0": "37d969d16b3f455eccd68c2c82fc3c5f6f6af919cda2ac616b8408f623947c94",
        "0.29.0": "642ff431122854ef3d31817ce9c2a256a8fa15b0fa9cc9d7280549b3dd1bb08a",
        "0.30.0": "46a900896eb4016e3121422a53cc0ea2a58da479339eac7b12fcf1705b18c2b8",
        "0.31.0": "2482a0acc4f6c76437f6bb7b0b731207f4cfeda50d805b8f924c28f97780f48a",
        "0.32.0": "6869df8fbc3d8ba381c9c650e927c57b16a52940defd13d66f95c38b15b2c9be",
        "0.33.0": "bb3b354975f1fe0918c098c1e45bf622cc6bd04c184b89d4a042b783b47e7884",
    },
    _RUNNER + "execute_model": {
        "0.26.0": "ebcc12adaaf4d693a4bb37c6e71d8db5d046220c82dd48f27742ad1395932cc0",
        "0.28.0": "c8b6af88490492475604f6a099c09b96dd62c0376daf674c00a487975d6aaa22",
        "0.29.0": "f46eb78422ad0661dfa31f1ae49b10519daae2e57ca84c7d8922d88320934542",
        "0.30.0": "11ccfef68256a5c504a9cc9d3568aed53639665b5d2837bd57f14e086c584250",
        "0.31.0": "7e66f3cf75df22644e93212246ebfd9f84e4c0994b49f0b4e4d8b302b83931ef",
        "0.32.0": "e1535583ba759cb3faf57f7dde6685136cf54a913756b63afb8e34c3bd87babf",
        "0.33.0": "7a1168866a759c6a46dd4686b0416c72b9d9753a5308cc97e478a67cdcba690b",
    },
    _RUNNER + "sample_tokens": {
        "0.26.0": "1b261d09b992ee5b0dbc5cd5d0747e33f0f8eaaa7b6c38382c0a9d71ad8e3a4d",
        "0.28.0": "f5cfa0b52eaed1dea7c0828e4ab76070605f0d2f067bcd42b9024ff62c39c37d",
        "0.29.0": "37aaf2e2df2e9a4cb80ebaca72090d11ca455c69c623f68a7d2d47c553afd039",
        "0.30.0": "37f7a4812f2a087b0c49d51cdd61fd93e1931e6ebbc50942a6617fd5496100b9",
        "0.31.0": "6e6b42abee1862ded428bf227ebdc248d66a1465675ee6eda6e66ae27b84ee01",
        "0.32.0": "de7f3c7b008b9c1757dfb31a013043fd5bace66b3a24891457a9af3a2a3c2068",
        "0.33.0": "82f16d6b90bdc2436638fbb79557ccb7e1cc2a5f35e6962618365eeadf888da4",
    },
    _RUNNER + "_dummy_run": {
        "0.26.0": "99b8cf89326120becfe34fc47f6889c648e30c00276b21b559e5012ebd7a735c",
        "0.28.0": "cdc8518af1b3662f77d3216fd0226bad289422e8ff5b3ef7099f09ea07708319",
        "0.29.0": "e3bb3555de952dc1c6974f451a4beefaaa628d9d33676dce8bf00baafdd87fd2",
        "0.30.0": "65f27ecd5caeb74f5f235d118813ebc670995808bb8295fa2c5509cb9f6a2a8b",
        "0.31.0": "cdb13c6a0009075e6c3e7efd927e1ba43189176a1cf6caf5210bd951c3525810",
        "0.32.0": "82cd9936a8321745d0661ae52a0a24e23a9d0808213779624f6f80be7c151d10",
        "0.33.0": "82cd9936a8321745d0661ae52a0a24e23a9d0808213779624f6f80be7c151d10",
    },
    "vllm.v1.worker.utils:AttentionGroup": {
        "0.26.0": "ae088473e31cc5a2444afc068da13aa130d14a63530f9b9ec57cec4f48c80766",
        "0.28.0": "510fe61c6091180432971576b7c9ab1888ca75c2898f3aefa9b10d20a01aeae0",
        "0.29.0": "510fe61c6091180432971576b7c9ab1888ca75c2898f3aefa9b10d20a01aeae0",
        "0.30.0": "f930651284212b9c02e5da0c6e4be1c41c4f5212aa87a671cdb63f6c9f4aa7af",
        "0.31.0": "f930651284212b9c02e5da0c6e4be1c41c4f5212aa87a671cdb63f6c9f4aa7af",
        "0.32.0": "a225b65d3349a4844af4c3eac7c12cf9fa0be3fa6cb77ed3da1c13b71d753983",
        "0.33.0": "a225b65d3349a4844af4c3eac7c12cf9fa0be3fa6cb77ed3da1c13b71d753983",
    },
    _PARALLEL + "use_ubatching": {
        "0.26.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.28.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.29.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.30.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.31.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.32.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
        "0.33.0": "f01c2bb08442a1f1919345a17c8bf4ac0f94025c11b7c3901ff2c6df7ae23e0a",
    },
}
