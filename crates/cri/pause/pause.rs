//! The pause process, which holds a pod's namespaces open: it reaps the zombies of a shared process namespace, and exits on
//! SIGTERM or SIGINT. It uses no library, so that one process needs only a few pages of memory.
//!
//! Signals are blocked and read one by one instead of handled: a blocked signal reaches even process 1, and no handler
//! trampoline is needed.
#![no_std]
#![no_main]

use core::arch::asm;

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;

const fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub const SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const EXIT_GROUP: usize = 94;
    pub const SIGPROCMASK: usize = 135;
    pub const SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
}

#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the caller passes arguments the kernel accepts for this call; rcx and r11 are what `syscall` overwrites.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the caller passes arguments the kernel accepts for this call.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
            options(nostack));
    }
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let awaited: u64 = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);
    let set = &raw const awaited as usize;
    let size = size_of::<u64>();
    // SAFETY: `set` points to a live mask of `size` bytes; SIG_BLOCK is 0; no pointer is written through.
    unsafe { system_call(number::SIGPROCMASK, 0, set, 0, size) };
    loop {
        // SAFETY: as above; null asks for no details and no time limit.
        let signal = unsafe { system_call(number::SIGTIMEDWAIT, set, 0, 0, size) };
        match signal as u64 {
            SIGCHLD => {
                // SAFETY: process -1 means any child, 1 is WNOHANG, and null asks for no details.
                while unsafe { system_call(number::WAIT4, usize::MAX, 0, 1, 0) } > 0 {}
            }
            SIGINT | SIGTERM => {
                // SAFETY: ends the process; nothing is left to clean up.
                unsafe { system_call(number::EXIT_GROUP, 0, 0, 0, 0) };
            }
            _ => {}
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
