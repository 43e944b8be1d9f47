# How lit runs the text tests: `.pipe` and `.mlir` files with RUN lines, our tools and LLVM's on the path.
import os, shutil
import lit.formats

config.name = "pp-" + config.pp_suite
config.test_format = lit.formats.ShTest(True)
config.suffixes = [".pipe", ".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.join(config.pp_source, config.pp_suite)
config.test_exec_root = os.path.join(config.pp_build, "out", config.pp_suite)
config.environment["PATH"] = os.pathsep.join([config.pp_tools, config.llvm_tools, os.environ["PATH"]])
config.environment["OMPI_ALLOW_RUN_AS_ROOT"] = config.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
# What prints text is the same code in `pp`, which starts in a third of the time, for it loads no LLVM.
config.substitutions.append((r"(?<![-/\w])pp-compile(?! [^|;&]*--search)(?= [^|;&]*--emit=(?!exe|obj|llvm))", "pp"))
config.substitutions.append(("%root", os.path.dirname(config.pp_source)))
config.substitutions.append(("%python", "python3"))
config.substitutions.append(("%build", os.path.dirname(config.pp_build)))
if shutil.which("run-clang-tidy-19") and os.path.exists(os.path.dirname(config.pp_build) + "/compile_commands.json"):
    config.available_features.add("clang-tidy")
