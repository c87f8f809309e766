# Types of the module that CMake writes beside the extension.
TORCH_VERSION: str
