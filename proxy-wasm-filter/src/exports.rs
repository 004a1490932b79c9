//! What the host calls. Each function finds the VM's state and leaves all
//! else to it; a call from within another finds the state taken. That a
//! context begins or is over is kept then until the next call: Envoy opens a
//! connection to an internal listener, and makes the contexts of its filters,
//! while the stream that takes it is being opened.

use std::cell::RefCell;
use std::mem::take;

use crate::abi::Action;
use crate::vm::Vm;

thread_local! {
    static VM: RefCell<Vm> = const { RefCell::new(Vm::new()) };
    /// What came while the state was taken.
    static LATER: RefCell<Vec<Life>> = const { RefCell::new(Vec::new()) };
}

/// What happens to a context.
#[derive(Clone, Copy, Debug)]
enum Life {
    Begins { context: u32, parent: u32 },
    Ends { context: u32 },
}

fn with<R>(otherwise: R, run: impl FnOnce(&mut Vm) -> R) -> R {
    let ran = VM.try_with(|vm| {
        let mut vm = vm.try_borrow_mut().ok()?;
        if LATER.try_with(|later| later.try_borrow().is_ok_and(|later| !later.is_empty())) == Ok(true) {
            catch_up(&mut vm);
        }
        Some(run(&mut vm))
    });
    ran.ok().flatten().unwrap_or(otherwise)
}

#[inline(never)]
fn catch_up(vm: &mut Vm) {
    let later = LATER.try_with(|later| later.try_borrow_mut().map(|mut later| take(&mut *later)));
    later.into_iter().flatten().flatten().for_each(|life| match life {
        Life::Begins { context, parent } => vm.create(context, parent),
        Life::Ends { context } => _ = vm.end(context),
    });
}

/// The state was taken.
#[cold]
#[inline(never)]
fn later(life: Life) {
    let _ = LATER.try_with(|later| later.try_borrow_mut().map(|mut later| later.push(life)));
}

/// Which ABI this is.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_abi_version_0_2_1() {}

/// The first call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _initialize() {}

/// A plugin (`parent` is 0) or a request of one begins.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    let is_done = with(false, |vm| {
        vm.create(context, parent);
        true
    });
    if !is_done {
        later(Life::Begins { context, parent });
    }
}

/// The VM starts; its own configuration is not used.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_vm_start(_: u32, _: usize) -> u32 {
    1
}

/// A plugin is configured: 0 refuses.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_configure(context: u32, _: usize) -> u32 {
    with(0, |vm| u32::from(vm.configure(context)))
}

/// Time has passed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_tick(context: u32) {
    with((), |vm| vm.tick(context));
}

/// A request's header fields are there.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_request_headers(context: u32, count: usize, _: u32) -> u32 {
    with(Action::Continue, |vm| vm.request(context, count)) as u32
}

/// Bytes came on a connection of a bridge's: messages of the stream to it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_downstream_data(context: u32, size: usize, _: u32) -> u32 {
    with((), |vm| vm.asked(context, size));
    Action::Continue as u32
}

/// Bytes are about to be sent on a connection of a bridge's: what Redis said.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_upstream_data(context: u32, size: usize, _: u32) -> u32 {
    with((), |vm| vm.replied(context, size));
    Action::Continue as u32
}

/// A message came on a stream of a plugin's.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_grpc_receive(context: u32, token: u32, size: usize) {
    with((), |vm| vm.message(context, token, size));
}

/// A stream of a plugin's is closed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_grpc_close(context: u32, token: u32, _: u32) {
    with((), |vm| vm.closed(context, token));
}

/// An HTTP call of a plugin's was answered; without header fields, it failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_http_call_response(
    context: u32,
    token: u32,
    headers: u32,
    size: usize,
    _: u32,
) {
    with((), |vm| vm.posted(context, token, headers > 0, size));
}

/// A response's header fields are about to be sent.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_response_headers(context: u32, _: usize, _: u32) -> u32 {
    with((), |vm| vm.response(context));
    Action::Continue as u32
}

/// A request is over, however it ended; or a plugin is, which may ask for time
/// by 0 and says itself when it is done. After this `proxy_on_delete` would
/// tell nothing new.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_done(context: u32) -> u32 {
    let is_done = with(None, |vm| Some(vm.end(context)));
    if is_done.is_none() {
        later(Life::Ends { context });
    }
    u32::from(is_done.unwrap_or(true))
}
