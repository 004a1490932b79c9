//! What the host calls. Each function finds the VM's state and leaves all
//! else to it; a call from within another, which no host should make, finds
//! the state taken and does nothing.

use std::cell::RefCell;

use crate::abi::{Action, Buffer};
use crate::vm::Vm;

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm::default());
}

fn with<R>(otherwise: R, run: impl FnOnce(&mut Vm) -> R) -> R {
    VM.try_with(|vm| vm.try_borrow_mut().ok().map(|mut vm| run(&mut vm))).ok().flatten().unwrap_or(otherwise)
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
    with((), |vm| vm.create(context, parent));
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

/// A piece of a request's body is there.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_request_body(context: u32, size: usize, _: u32) -> u32 {
    with((), |vm| vm.body(context, Buffer::RequestBody, size));
    Action::Continue as u32
}

/// A piece of a response's body is there.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_response_body(context: u32, size: usize, _: u32) -> u32 {
    with((), |vm| vm.body(context, Buffer::ResponseBody, size));
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

/// A request is over, however it ended; or a plugin is.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn proxy_on_delete(context: u32) {
    with((), |vm| vm.delete(context));
}
