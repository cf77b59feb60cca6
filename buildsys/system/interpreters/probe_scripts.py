"""What is run in another interpreter to learn about it. Any Python since 2.7 must be able to read these texts."""

# Each writes JSON to the descriptor argv[1]: what is printed meanwhile, by whomever, is no answer.
IDENTITY = """
import json, os, platform, sys
answer = {
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "full_version": sys.version,
    "prefix": sys.prefix,
    "standard": os.path.dirname(os.__file__),
    "path": [entry for entry in sys.path if entry],
    "pid": os.getpid(),
}
os.write(int(sys.argv[1]), json.dumps(answer).encode())
"""

# argv[2] is the module
MODULE = """
import json, os, sys
name, answer = sys.argv[2], {}
if name == "onnxsim":
    sys.modules["torch"] = None  # which it takes along where it finds it, for seconds, and needs nowhere here
sys.path[:] = [entry for entry in sys.path if entry]
try:
    module = __import__(name)
    answer["version"] = str(getattr(module, "__version__", ""))
    answer["file"] = str(getattr(module, "__file__", ""))
except ImportError as error:
    lacking = getattr(error, "name", None)
    if lacking == name:
        answer["missing"] = True
    answer["problem"] = "%s: %s" % (type(error).__name__, error)
except Exception as error:
    answer["problem"] = "%s: %s" % (type(error).__name__, error)
if "problem" not in answer and name == "onnxruntime":
    answer["providers"] = list(module.get_available_providers())
if "problem" not in answer and name in ("tensorrt", "tensorrt_rtx"):
    try:
        answer["builder"] = bool(module.Builder(module.Logger(module.Logger.ERROR)))
    except Exception as error:
        answer["builder"] = False
        answer["builder_problem"] = "%s: %s" % (type(error).__name__, str(error).split("\\n")[0])
if "problem" not in answer and name == "torch":
    answer["cuda"] = module.version.cuda
os.write(int(sys.argv[1]), json.dumps(answer).encode())
os._exit(0)
"""
