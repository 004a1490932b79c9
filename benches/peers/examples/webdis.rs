//! A limiter in Redis as stock filters have it: each request asks an HTTP server that stands
//! before Redis. The command that it asks with, whole, is the plugin's configuration; what it costs
//! to make one, and to understand the answer, is not counted.

use std::time::Duration;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root { command: Vec::new() }));
}}

struct Root {
    command: Vec<u8>,
}

struct Request {
    command: Vec<u8>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        self.command = self.get_plugin_configuration().unwrap_or_default();
        true
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request { command: self.command.clone() }))
    }
}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let _ = self.get_http_request_header("x-user");
        let headers = vec![(":method", "POST"), (":path", "/"), (":authority", "webdis")];
        match self.dispatch_http_call("webdis", headers, Some(&self.command), vec![], Duration::from_secs(1))
        {
            Ok(_) => Action::Pause,
            Err(_) => {
                self.send_http_response(503, vec![], None);
                Action::Pause
            }
        }
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_response_header("x-ratelimit-limit", Some("1000000"));
        self.set_http_response_header("x-ratelimit-remaining", Some("999999"));
        self.set_http_response_header("x-ratelimit-reset", Some("1"));
        Action::Continue
    }
}

impl Context for Request {
    fn on_http_call_response(&mut self, _: u32, _: usize, size: usize, _: usize) {
        // {"EVALSHA":12} is how long the bucket takes to fill; an error is an object.
        let body = self.get_http_call_response_body(0, size).unwrap_or_default();
        let answer = body.split(|byte| *byte == b':').nth(1).and_then(|rest| rest.first());
        if answer.is_some_and(u8::is_ascii_digit) {
            self.resume_http_request();
        } else {
            self.send_http_response(429, vec![], None);
        }
    }
}
