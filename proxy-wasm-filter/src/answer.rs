//! An answer as the host sends it: header fields of the response that an
//! upstream gives, or a response of our own.

use tollgate_core::http;
use tollgate_core::policy::{Answer, Rules, Selection};

use crate::abi::{self, Action, Level, Map};
use crate::request::Reply;

const UNAUTHENTICATED: i32 = 16;
/// Its HTTP status says it all.
const NO_GRPC_STATUS: i32 = -1;

/// Keeps what the response is to say; a denial is the response.
pub(crate) fn answered(
    rules: &Rules,
    selection: &Selection<'_>,
    answer: &Answer,
    is_local: &[bool],
    reply: &mut Reply,
    text: &mut [u8],
) -> Action {
    for (hold, layer) in answer.holds().iter().zip(selection.layers()) {
        if hold.units > 0 {
            reply.holds.push((is_local.get(layer.policy) == Some(&true), *hold));
        }
    }
    reply.keep(|fields, buffer| fields.write(rules.fields(), rules.items(selection, answer), buffer));
    if answer.allowed {
        return Action::Continue;
    }
    let name = answer.tightest.and_then(|tightest| selection.layers().nth(tightest));
    let name = name.and_then(|layer| rules.policies().get(layer.policy)).map_or("", |policy| policy.name());
    let grpc = answer.decision().map(|decision| (name, decision));
    let status = rules.status_of(answer);
    match grpc.filter(|_| is_grpc()) {
        Some((name, decision)) => {
            let message = http::grpc_denial(name, decision, text).map(|fields| message(&fields, text));
            send(status, &message.unwrap_or_default(), &[], http::grpc_status(decision).into())
        }
        None => {
            let len = rules.write_problem(selection, answer, text).unwrap_or(0);
            send_with_fields(status, text.get(..len).unwrap_or(&[]), reply)
        }
    }
}

const PROBLEM: (&str, &[u8]) = ("content-type", b"application/problem+json");

/// Answers a request that does not tell who it comes from.
pub(crate) fn deny_missing(header: &str, reply: &mut Reply, text: &mut [u8]) -> Action {
    if is_grpc() {
        let message = http::grpc_missing(header, text).map(|fields| message(&fields, text));
        return send(401, &message.unwrap_or_default(), &[], UNAUTHENTICATED);
    }
    reply.keep(|fields, buffer| http::missing_fields(header, buffer).map(|made| *fields = made));
    let len = http::missing_problem(header, text).unwrap_or(0);
    send_with_fields(401, text.get(..len).unwrap_or(&[]), reply)
}

/// Answers who asks what is no HTTP filter.
pub(crate) fn misplaced() -> Action {
    send(503, b"tollgate: this plugin is a network filter\n", &[], NO_GRPC_STATUS)
}

/// The fields go with the answer: each one that is set later is a call to the
/// host more.
fn send_with_fields(status: u16, body: &[u8], reply: &mut Reply) -> Action {
    let headers: Vec<_> = [PROBLEM].into_iter().chain(reply.fields()).collect();
    let action = send(status, body, &headers, NO_GRPC_STATUS);
    if let Action::Pause = action {
        reply.forget_fields();
    }
    action
}

/// A host that does not take the answer would let the request wait for ever:
/// it then goes on, and that is told.
fn send(status: u16, body: &[u8], headers: &[(&str, &[u8])], grpc_status: i32) -> Action {
    match abi::respond(status, body, &abi::pairs(headers), grpc_status) {
        Ok(()) => Action::Pause,
        Err(refused) => {
            abi::log(Level::Error, &format!("tollgate: a denial was not sent: status {}", refused.0));
            Action::Continue
        }
    }
}

fn is_grpc() -> bool {
    let kind = abi::header(Map::Request, "content-type").ok().flatten();
    kind.is_some_and(|kind| http::is_grpc(&kind))
}

/// The message of a gRPC answer, without the encoding that the host adds.
fn message(fields: &http::Fields, text: &[u8]) -> Vec<u8> {
    let field = fields.as_slice().iter().find(|field| field.name == "grpc-message");
    let mut rest = field.and_then(|field| text.get(field.start..field.end)).unwrap_or(&[]);
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.split_first_chunk::<2>().filter(|_| *first == b'%');
        let byte = digits.and_then(|(digits, after)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, after))
        });
        let (byte, after) = byte.unwrap_or((*first, after));
        plain.push(byte);
        rest = after;
    }
    plain
}
