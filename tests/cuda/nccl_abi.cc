/* nccl_abi.cc - kernels/cuda/ranks/nccl.h against NVIDIA's <nccl.h>, and nccl.cu against the library beside it: make nccl-abi.
 * Numbers, layouts and prototypes are compared when this is compiled.  Then it runs: the library is found, has every
 * name and is new enough.  It needs no GPU; what the library says without one is printed. */
#include <cstdio>
#include <type_traits>

#include NCCL_HEADER

#include "kernels/cuda/ranks/nccl.cu"

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_OLDEST, NCCL_VERSION(2, 14, 0));
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME(alignof(struct nccl_id), alignof(ncclUniqueId));

/* The beginning of ncclConfig_t; it says how long it is. */
SAME(offsetof(struct nccl_config, size), offsetof(ncclConfig_t, size));
SAME(offsetof(struct nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(struct nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(struct nccl_config, blocking), offsetof(ncclConfig_t, blocking));
static_assert(std::is_same<decltype(ncclConfig_t::size), size_t>::value &&
	std::is_same<decltype(ncclConfig_t::blocking), int>::value, "types of ncclConfig_t");
static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "a library copies `size` bytes");

/* Passed alike: pointers as pointers, enumerations as int, structures by value of one size. */
template <class A, class B> constexpr bool alike()
{
	return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value &&
	       std::is_class<A>::value == std::is_class<B>::value;
}

template <class A, class B> struct same_call { static const bool value = false; };
template <class R, class S, class... A, class... B> struct same_call<R (*)(A...), S (*)(B...)> {
	template <bool Equal, class = void> struct each { static const bool value = false; };
	template <class V> struct each<true, V> { static const bool value = alike<R, S>() && (alike<A, B>() && ...); };
	static const bool value = each<sizeof...(A) == sizeof...(B)>::value;
};

#define CALL(name) static_assert(same_call<decltype(nccl_calls::name), decltype(&nccl##name)>::value, "nccl" #name)
CALL(GetVersion);
CALL(GetUniqueId);
CALL(CommInitRankConfig);
CALL(CommGetAsyncError);
CALL(AllGather);
CALL(CommAbort);
CALL(GetErrorString);

/* The emulation's <dlfcn.h> asks for these: here they are the real ones. */
extern "C" void *real_dlopen(const char *, int) __asm__("dlopen");
extern "C" void *real_dlsym(void *, const char *) __asm__("dlsym");
extern "C" char *real_dlerror(void) __asm__("dlerror");
void *emu_dlopen(const char *name, int how) { return real_dlopen(name, how); }
void *emu_dlsym(void *library, const char *name) { return real_dlsym(library, name); }
const char *emu_dlerror() { return real_dlerror(); }

int main()
{
	static struct dev d;
	const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
	struct nccl_id id = {};
	int version = 0;

	if (theirs.magic != 0xcafebeef) {
		printf("ncclConfig_t's magic is %#x\n", theirs.magic);
		return 1;
	}
	if (!nccl_there())
		return 1;
	nccl.GetVersion(&version);
	printf("kernels/cuda/ranks/nccl.h is as NCCL %d.%d.%d has it, and its library has all names; ", NCCL_MAJOR, NCCL_MINOR,
		NCCL_PATCH);
	printf("an id without a GPU: %s\n", nccl_id(&d, &id) ? "made" : d.fault.why);
	return version != NCCL_VERSION_CODE;
}
