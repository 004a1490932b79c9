//! Commands to Redis by HTTP calls: each POST's body is a TCP connection.
//!
//! For hosts without gRPC streams, and for set-ups without the bridge. Such a
//! call ends its body, so its connection serves the commands of one body and
//! is closed; Redis answers them first. To the core all of them together are
//! one connection: [`Posts`] gives it the answers in the order in which the
//! calls were made, and as many replies of each as commands were in it. One
//! call that fails, or that answers too little or too much, ends that
//! connection for all that are under way: whose reply is whose must never be
//! in doubt.
//!
//! Few calls are under way at once ([`MOST`]); commands that come meanwhile go
//! together with the next. The first call has one small command beside who we
//! are, as the core sees to it on every connection.

use std::collections::VecDeque;

use tollgate_core::redis::link::MAX_CALL;
use tollgate_core::redis::resp::{Encoder, Reader};

/// Calls of one worker that are under way at once.
const MOST: usize = 8;

/// The calls that are under way, the oldest first.
#[derive(Debug)]
pub(crate) struct Posts {
    /// What each body begins with: a connection knows nobody yet.
    login: Vec<u8>,
    under_way: VecDeque<Post>,
}

#[derive(Debug)]
struct Post {
    token: u32,
    /// Commands in it, without that of the login.
    commands: usize,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Awaited,
    Failed,
    Came(Vec<u8>),
}

/// What the connection that all calls are together has to say next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// Bytes of Redis's.
    pub(crate) bytes: Vec<u8>,
    /// Does the connection end with them?
    pub(crate) is_end: bool,
}

impl Posts {
    /// Calls that begin by saying who they are, if there is a password.
    pub(crate) fn new(username: Option<&str>, password: Option<&[u8]>) -> Posts {
        let mut login = Vec::new();
        if let Some(password) = password {
            let mut room = vec![0; 256_usize.saturating_add(password.len())];
            let mut command = Encoder::new(&mut room);
            command.arg(b"AUTH");
            if let Some(username) = username {
                command.arg(username.as_bytes());
            }
            command.arg(password);
            login.extend_from_slice(command.finish().unwrap_or_default()); // names and passwords are shorter
        }
        Posts { login, under_way: VecDeque::with_capacity(MOST) }
    }

    /// May another call be made?
    pub(crate) fn has_room(&self) -> bool {
        self.under_way.len() < MOST
    }

    /// The body that carries these commands.
    pub(crate) fn body(&self, commands: &[u8]) -> Vec<u8> {
        [&self.login, commands].concat()
    }

    /// A call with these commands was made.
    pub(crate) fn sent(&mut self, token: u32, commands: &[u8]) {
        let (commands, _) = replies(commands, usize::MAX);
        self.under_way.push_back(Post { token, commands, answer: Answer::Awaited });
    }

    /// A call was answered, or failed. False if it is none of ours, or none
    /// any more.
    pub(crate) fn answered(&mut self, token: u32, body: Option<Vec<u8>>) -> bool {
        match self.under_way.iter_mut().find(|post| post.token == token) {
            Some(post) => {
                post.answer = body.map_or(Answer::Failed, Answer::Came);
                true
            }
            None => false,
        }
    }

    /// What came, as far as the calls before it were answered.
    pub(crate) fn poll(&mut self) -> Option<Input> {
        match self.under_way.front()?.answer {
            Answer::Awaited => None,
            Answer::Failed => {
                self.forget();
                Some(Input { bytes: Vec::new(), is_end: true })
            }
            Answer::Came(_) => {
                let post = self.under_way.pop_front()?;
                let Answer::Came(mut bytes) = post.answer else { return None };
                if !self.login.is_empty() {
                    let (_, end) = replies(&bytes, 1);
                    if bytes.first() != Some(&b'+') {
                        // The core knows what it means.
                        self.forget();
                        bytes.truncate(end);
                        return Some(Input { bytes, is_end: true });
                    }
                    bytes.drain(..end);
                }
                let (count, end) = replies(&bytes, post.commands);
                let is_end = count != post.commands || end != bytes.len();
                if is_end {
                    self.forget();
                    if count == post.commands {
                        bytes.truncate(end); // what is beyond would be taken for the next call's
                    }
                }
                Some(Input { bytes, is_end })
            }
        }
    }

    /// The connection is over: what is still under way has no one to answer.
    pub(crate) fn forget(&mut self) {
        self.under_way.clear();
    }
}

/// How many whole replies (or commands, which look the same) are at the front,
/// and where they end; at most so many.
fn replies(bytes: &[u8], most: usize) -> (usize, usize) {
    let mut reader = Reader::new(MAX_CALL);
    let (mut count, mut end, mut at) = (0_usize, 0, 0_usize);
    while count < most
        && let Some(rest) = bytes.get(at..)
        && let Ok(Some(part)) = reader.next(rest)
    {
        at = at.saturating_add(part.len);
        if part.last {
            count = count.saturating_add(1);
            end = at;
        }
    }
    (count, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    fn two_calls() -> Posts {
        let mut posts = Posts::new(None, None);
        posts.sent(7, PING);
        posts.sent(9, &PING.repeat(2));
        posts
    }

    fn input(bytes: &[u8], is_end: bool) -> Option<Input> {
        Some(Input { bytes: bytes.to_vec(), is_end })
    }

    #[test]
    fn answers_are_told_in_the_order_of_the_calls() {
        let mut posts = two_calls();
        assert!(posts.answered(9, Some(b":2\r\n:3\r\n".to_vec())));
        assert_eq!(posts.poll(), None);
        assert!(posts.answered(7, Some(b":1\r\n".to_vec())));
        assert_eq!(posts.poll(), input(b":1\r\n", false));
        assert_eq!(posts.poll(), input(b":2\r\n:3\r\n", false));
        assert_eq!(posts.poll(), None);
        assert!(!posts.answered(7, None), "it was told");
    }

    #[test]
    fn an_answer_that_is_cut_ends_the_connection_for_all() {
        let mut posts = two_calls();
        assert!(posts.answered(7, Some(b":".to_vec())));
        assert_eq!(posts.poll(), input(b":", true));
        assert!(!posts.answered(9, Some(b":2\r\n:3\r\n".to_vec())));
        assert_eq!(posts.poll(), None);
    }

    #[test]
    fn what_is_beyond_the_last_reply_is_nobodys() {
        let mut posts = two_calls();
        assert!(posts.answered(7, Some(b":1\r\n:1\r\n".to_vec())));
        assert_eq!(posts.poll(), input(b":1\r\n", true));
    }

    #[test]
    fn a_call_that_failed_ends_the_connection() {
        let mut posts = two_calls();
        assert!(posts.answered(7, None));
        assert_eq!(posts.poll(), input(b"", true));
        assert!(posts.has_room() && !posts.answered(9, None));
    }

    #[test]
    fn who_we_are_is_said_in_each_body_and_its_reply_is_not_told() {
        let mut posts = Posts::new(Some("gate"), Some(b"secret"));
        assert_eq!(posts.body(PING), [b"*3\r\n$4\r\nAUTH\r\n$4\r\ngate\r\n$6\r\nsecret\r\n", PING].concat());
        posts.sent(1, PING);
        assert!(posts.answered(1, Some(b"+OK\r\n+PONG\r\n".to_vec())));
        assert_eq!(posts.poll(), input(b"+PONG\r\n", false));
        posts.sent(2, PING);
        let refused = b"-WRONGPASS no\r\n-NOAUTH no\r\n";
        assert!(posts.answered(2, Some(refused.to_vec())));
        assert_eq!(posts.poll(), input(b"-WRONGPASS no\r\n", true));
    }

    #[test]
    fn only_so_many_are_under_way() {
        let mut posts = Posts::new(None, None);
        for token in 0..8 {
            assert!(posts.has_room());
            posts.sent(token, PING);
        }
        assert!(!posts.has_room());
        assert!(posts.answered(0, Some(b"+PONG\r\n".to_vec())));
        assert!(posts.poll().is_some() && posts.has_room());
    }
}
