// One suspended CUDA thread = one saved stack pointer.
//
// switch_stack costs about 8 ns because it saves only what the calling convention asks a callee to
// keep; swapcontext would cost 190 ns for its two system calls.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace host {

using FiberEntry = void (*)();

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void dsv4_switch_stack(void** save, void* resume);

// Returns the stack pointer that makes dsv4_switch_stack start `entry` on an empty stack.
inline void* prepare_stack(char* top, FiberEntry entry) {
#if defined(__x86_64__)
    uintptr_t* frame = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(top) & ~15ull);
    *--frame = 0;  // return address of entry: never used, and it ends a walk over frames
    *--frame = reinterpret_cast<uintptr_t>(entry);
    for (int saved = 0; saved < 6; ++saved) *--frame = 0;  // rbp = 0 ends the frame chain
    return frame;
#else
    uintptr_t* frame = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(top) & ~15ull);
    frame -= 20;
    for (int saved = 0; saved < 20; ++saved) frame[saved] = 0;
    frame[11] = reinterpret_cast<uintptr_t>(entry);  // x30, the address that ret jumps to
    return frame;
#endif
}
#else
#error "the host backend switches stacks on x86-64 and aarch64 only; add a switch to fiber.h"
#endif

}  // namespace host

#ifdef HOST_DEFINE_SWITCH
#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".globl dsv4_switch_stack\n"
    ".hidden dsv4_switch_stack\n"
    ".type dsv4_switch_stack,@function\n"
    "dsv4_switch_stack:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size dsv4_switch_stack,.-dsv4_switch_stack\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".globl dsv4_switch_stack\n"
    ".hidden dsv4_switch_stack\n"
    ".type dsv4_switch_stack,%function\n"
    "dsv4_switch_stack:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
    "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n"
    ".size dsv4_switch_stack,.-dsv4_switch_stack\n");
#endif
#endif
