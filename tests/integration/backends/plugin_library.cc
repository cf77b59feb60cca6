// A TensorRT plugin library without TensorRT's headers, which its Python wheels do not have: the operator
// mydomain::Same returns its input. The classes repeat the order of virtual functions of TensorRT's V3 plugin
// interfaces (NvInferPluginBase.h, NvInferRuntime.h), which is all that the binary interface is made of.

#include <cstdint>
#include <cstring>

namespace {

struct InterfaceInfo { char const* kind; int32_t major, minor; };
struct PluginField { char const* name; void const* data; int32_t type, length; };
struct PluginFieldCollection { int32_t count; PluginField const* fields; };
struct DimsExprs { int32_t count; void const* sizes[8]; };
struct Dims { int32_t count; int64_t sizes[8]; };
struct TensorDesc { Dims dims; int32_t type, format; float scale; };
struct DynamicTensorDesc { TensorDesc desc; Dims min, max, opt; };

struct Versioned {
    virtual int32_t api_language() const noexcept { return 0; }
    virtual InterfaceInfo interface_info() const noexcept = 0;
    virtual ~Versioned() noexcept = default;
};

struct Capability : Versioned {};

struct Plugin : Versioned {
    InterfaceInfo interface_info() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual Capability* capability(int32_t kind) noexcept = 0;
    virtual Plugin* clone() noexcept = 0;
};

struct Core : Capability {
    InterfaceInfo interface_info() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual char const* name() const noexcept { return "Same"; }
    virtual char const* version() const noexcept { return "1"; }
    virtual char const* plugin_namespace() const noexcept { return "mydomain"; }
};

struct Build : Capability {
    InterfaceInfo interface_info() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configure(DynamicTensorDesc const*, int32_t, DynamicTensorDesc const*, int32_t) noexcept { return 0; }
    virtual int32_t types(int32_t* outputs, int32_t, int32_t const* inputs, int32_t) const noexcept {
        outputs[0] = inputs[0];
        return 0;
    }
    virtual int32_t shapes(DimsExprs const* in, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t, void*) noexcept {
        out[0] = in[0];
        return 0;
    }
    virtual bool supports(int32_t position, DynamicTensorDesc const* tensors, int32_t, int32_t) noexcept {
        return tensors[position].desc.format == 0 && tensors[position].desc.type == tensors[0].desc.type;
    }
    virtual int32_t outputs() const noexcept { return 1; }
    virtual size_t workspace(DynamicTensorDesc const*, int32_t, DynamicTensorDesc const*, int32_t) const noexcept { return 0; }
    virtual int32_t tactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t tactic_count() noexcept { return 0; }
    virtual char const* timing_cache_id() noexcept { return nullptr; }
    virtual int32_t format_combination_limit() noexcept { return 100; }
    virtual char const* metadata() noexcept { return nullptr; }
};

struct Runtime : Capability {
    InterfaceInfo interface_info() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t set_tactic(int32_t) noexcept { return 0; }
    virtual int32_t on_shape_change(TensorDesc const*, int32_t, TensorDesc const*, int32_t) noexcept { return 0; }
    virtual int32_t enqueue(TensorDesc const*, TensorDesc const*, void const* const*, void* const*, void*, void*) noexcept {
        return 1;  // there is no kernel in this test
    }
    virtual Plugin* attach(void*) noexcept { return nullptr; }
    virtual PluginFieldCollection const* fields() noexcept { return &none_; }
    PluginFieldCollection none_{0, nullptr};
};

struct Same final : Plugin {
    Core core;
    Build build;
    Runtime runtime;
    Capability* capability(int32_t kind) noexcept override {
        return kind == 0 ? static_cast<Capability*>(&core) : kind == 1 ? static_cast<Capability*>(&build) : &runtime;
    }
    Plugin* clone() noexcept override { return new Same; }
};

struct SameCreator final : Versioned {
    InterfaceInfo interface_info() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual Plugin* create(char const*, PluginFieldCollection const*, int32_t) noexcept { return new Same; }
    virtual PluginFieldCollection const* field_names() noexcept { return &none_; }
    virtual char const* name() const noexcept { return NAME; }
    virtual char const* version() const noexcept { return "1"; }
    virtual char const* plugin_namespace() const noexcept { return "mydomain"; }
    PluginFieldCollection none_{0, nullptr};
};

SameCreator creator;
Versioned* creators[] = {&creator};

}  // namespace

#ifdef MISSING
extern "C" int function_of_another_library();
extern "C" int call_it() { return function_of_another_library(); }
#endif

extern "C" void setLoggerFinder(void*) {}
extern "C" Versioned** ENTRY(int32_t& count) {
    count = 1;
    return creators;
}
