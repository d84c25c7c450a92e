// Turns a processor fault inside a kernel into a report, in every mode, so that a wild pointer does
// not end the process. Signals from anywhere else go to whoever handled them before.
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "block.h"

namespace host {
namespace {

constexpr int watched[] = {SIGSEGV, SIGBUS, SIGFPE};
constexpr int watched_count = sizeof watched / sizeof *watched;
struct sigaction before[watched_count];

bool inside_a_kernel(const void* stack_address) {
    if (launch == nullptr) return false;
    const Fiber* fiber = block.threads[block.current].fiber;
    const char* address = static_cast<const char*>(stack_address);
    return fiber != nullptr && address >= fiber->stack && address < fiber->stack + stack_bytes;
}

void pass_on(int signal, siginfo_t* info, void* context) {
    for (int i = 0; i < watched_count; ++i) {
        if (watched[i] != signal) continue;
        const struct sigaction& old = before[i];
        if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(signal, info, context);
        if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
        sigaction(signal, &old, nullptr);  // returning repeats the fault, now with its usual end
    }
}

void meet(int signal, siginfo_t* info, void* context) {
    if (!inside_a_kernel(&signal)) return pass_on(signal, info, context);
    const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    char* pc = reinterpret_cast<char*>(machine.gregs[REG_RIP]);
    void* frame = reinterpret_cast<void*>(machine.gregs[REG_RBP]);
#else
    char* pc = reinterpret_cast<char*>(machine.pc);
    void* frame = reinterpret_cast<void*>(machine.regs[29]);
#endif
    Dl_info library;
    if (dladdr(pc, &library) != 0) fault->code_offset = pc - static_cast<char*>(library.dli_fbase);
    // As if the next instruction had been a call: lines are looked up before a return address.
    if (signal == SIGFPE)
        fail_at("division-by-zero", "an integer division by zero, or one that overflows", "", 0,
                pc + 1, frame);
    fail_at("out-of-bounds", "the processor refused a memory access (wild or misaligned address)",
            "", 0, pc + 1, frame);
}

}  // namespace

void watch_signals() {
    static bool watching;
    if (watching) return;
    watching = true;
    struct sigaction ours = {};
    ours.sa_sigaction = meet;
    // The handler may leave by a switch of stacks, so its signal must not stay blocked.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int i = 0; i < watched_count; ++i) sigaction(watched[i], &ours, &before[i]);
}

}  // namespace host
