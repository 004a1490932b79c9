//! A link against a server that is modelled, under any schedule: what is
//! written, executed, answered, cut, flushed, cancelled, and when.

mod model;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use model::{Do, HEIR, MS, Model, Number, command, config, step};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_ticket_completes_once_and_no_call_runs_twice(
        steps in proptest::collection::vec(step(), 1..250),
        is_early in any::<bool>(),
    ) {
        let mut model = if is_early { Model::opening() } else { Model::ready() };
        for step in steps {
            model.take(step);
        }
        // Whatever happened: within a second all is answered, and the link is of use again.
        model.server.error = None;
        model.settle();
        for _ in 0..20 {
            model.take(Do::Wait(50));
            model.settle();
        }
        prop_assert!(model.deadlines.is_empty(), "{:?}", model.deadlines);
        prop_assert!(model.link.is_ready());
        model.take(Do::Send(5, 100));
        model.settle();
        prop_assert_eq!(model.over.get(&(model.next - 1)), Some(&Ok(())));
    }

    #[test]
    fn garbage_ends_a_connection_and_never_more(bytes in any::<Vec<u8>>(), calls in 0usize..5) {
        let mut model = Model::ready();
        for _ in 0..calls {
            model.take(Do::Send(9, 10));
        }
        model.take(Do::Write(5000));
        model.server.output = bytes;
        model.take(Do::Read(5000));
        model.take(Do::Wait(500));
        prop_assert!(model.deadlines.is_empty());
    }
}

#[test]
fn a_flush_in_the_middle_of_a_full_pipeline_fails_nobody() {
    let mut model = Model::ready();
    for round in 0..50 {
        let mut sent = 0;
        while model.deadlines.len() < 24 && sent < 30 {
            model.take(Do::Send(100, 1000));
            sent += 1;
        }
        model.take(Do::Write(1500));
        model.take(Do::Serve(3 + round % 7));
        model.take(Do::Flush);
        model.settle();
        assert!(model.deadlines.is_empty());
    }
    assert!(model.over.len() > 1000 && model.over.values().all(Result::is_ok));
    assert_eq!(model.connects, 1);
}

#[test]
fn calls_that_come_before_the_first_connection_wait_for_it() {
    let mut model = Model::opening();
    for wait in [100, 2, 100] {
        model.take(Do::Send(20, wait));
    }
    model.take(Do::Wait(3));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(())), (&1, &Err("timeout")), (&2, &Ok(()))]);
    // Also those that come before it is asked for.
    let mut link = Link::new(&config()).unwrap();
    assert_eq!(link.send(7, &Number(7, 1), 9 * MS, 1), Ok(()));
    assert_eq!(link.poll_timeout(), Some(0), "to connect");
    assert_eq!(link.poll_event(1), Some(Event::Connect));
    assert_eq!(link.poll_timeout(), Some(9 * MS));
    assert!(link.poll_transmit().is_empty());
}

#[test]
fn when_nobody_is_there_they_fail_at_once_and_so_do_those_after_them() {
    let mut model = Model::opening();
    model.take(Do::Send(20, 1000));
    model.take(Do::Cut);
    model.take(Do::Send(20, 1000));
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Err("not_ready"))]);
    assert_eq!(model.link.send(9, &Number(9, 1), NEVER, model.now), Err(Refused::NotConnected));
}

#[test]
fn a_first_connection_is_not_given_up_before_who_waits_for_it_has_had_its_time() {
    let mut model = Model::opening();
    model.take(Do::Send(20, 900));
    model.now += 600 * MS; // longer than a connection may take, and a host that was kept from running
    model.link.handle_timeout(model.now);
    model.events();
    assert!(model.connected);
    model.take(Do::Wait(1));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(()))]);
    // Those that come later do not keep it, or a dead one were never given up.
    let mut model = Model::opening();
    for _ in 0..10 {
        model.take(Do::Send(20, 500));
        model.now += 100 * MS;
        model.link.handle_timeout(model.now);
        model.events();
    }
    assert!(!model.connected || model.connects > 1);
}

/// As on a machine that has too much to do, where nobody waited for it.
#[test]
fn a_first_connection_that_was_not_made_in_time_is_waited_for_again() {
    let mut model = Model::opening();
    model.now += 401 * MS;
    model.link.handle_timeout(model.now);
    model.events();
    assert!(!model.connected);
    model.take(Do::Send(20, 100));
    model.take(Do::Wait(20));
    model.take(Do::Wait(1));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(()))]);
    model.take(Do::Cut);
    assert_eq!(model.link.send(9, &Number(9, 1), NEVER, model.now), Err(Refused::NotConnected), "as before");
}

#[test]
fn no_more_wait_for_the_first_connection_than_may_be_in_flight() {
    let mut model = Model::opening();
    (0..30).for_each(|_| model.take(Do::Send(20, 1000)));
    assert_eq!(model.deadlines.len(), 24);
    model.take(Do::Wait(1));
    model.settle();
    assert!(model.over.len() == 24 && model.over.values().all(Result::is_ok));
}

#[test]
fn what_nobody_waits_for_is_not_written_if_it_was_not() {
    let mut model = Model::ready();
    for wait in [10, 1, 10, 1, 1, 10] {
        model.take(Do::Send(20, wait));
    }
    model.take(Do::Cancel(6)); // the first
    model.take(Do::Write(3)); // of the second, which must end then
    model.take(Do::Wait(2));
    model.settle();
    assert_eq!(model.server.executed.keys().copied().collect::<Vec<_>>(), [1, 2, 5]);
}

#[test]
fn a_reply_that_is_waited_on_is_told_to_the_heir_alone() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 5));
    model.take(Do::Write(1000));
    model.take(Do::Wait(6));
    assert_eq!(model.over.get(&0), Some(&Err("timeout")));
    model.settle();
    assert_eq!(model.over.get(&HEIR), Some(&Ok(())));
    assert!(!model.link.wait_on(0, HEIR), "it is there");
}

#[test]
fn a_silent_server_is_left_and_tried_again_within_a_second() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 5));
    model.take(Do::Write(1000));
    let mut connects = Vec::new();
    for _ in 0..3000 {
        let before = model.connects;
        model.take(Do::Wait(1));
        if model.connects > before {
            connects.push(model.now / MS);
        }
    }
    assert_eq!(model.over.get(&0), Some(&Err("timeout")));
    assert!(connects.windows(2).all(|two| two[1] - two[0] <= 801), "{connects:?}");
    assert!((3..20).contains(&connects.len()), "{connects:?}");
}

#[test]
fn a_wrong_password_is_told_and_waited_for() {
    let mut link = Link::new(&config()).unwrap();
    let mut refusals = 0;
    for ms in 0..10_000 {
        let now = ms * MS;
        link.handle_timeout(now);
        while let Some(event) = link.poll_event(now) {
            match event {
                Event::Connect => {
                    link.handle_connected(now);
                    let len = link.poll_transmit().len();
                    link.transmitted(len);
                    link.handle_input(
                        b"-WRONGPASS invalid username-password pair\r\n-NOAUTH a\r\n-NOAUTH a\r\n",
                    );
                }
                Event::Disconnect { why } => {
                    assert_eq!(why, Why::Auth);
                    refusals += 1;
                }
                event => panic!("{event:?}"),
            }
        }
        assert!(!link.is_ready());
        assert_eq!(link.send(1, &Number(1, 1), NEVER, now), Err(Refused::NotConnected));
    }
    assert!((20..70).contains(&refusals), "{refusals}");
    assert_eq!(link.last_error(), b"WRONGPASS invalid username-password pair");
}

/// Who is not known may write no long command: the server would close, and its words could be lost.
#[test]
fn nothing_but_a_small_first_command_is_written_before_it_is_answered() {
    let nobody = LinkConfig { password: None, database: 0, ..config() };
    let firsts = [
        (config(), "AUTH"),
        (LinkConfig { username: Some(b"gate"), ..nobody.clone() }, "AUTH"),
        (LinkConfig { database: 3, ..nobody.clone() }, "SELECT"),
        (nobody.clone(), "CLIENT"),
        (LinkConfig { name: None, ..nobody }, "PING"),
    ];
    for (config, first) in firsts {
        let mut link = Link::new(&config).unwrap();
        for now in [0, MS * 1000] {
            if now == 0 {
                assert_eq!(link.send(7, &Number(7, 1), 9 * MS, 0), Ok(())); // one that comes early
            }
            assert_eq!(link.poll_event(now), Some(Event::Connect));
            link.handle_connected(now);
            let written = written(&mut link);
            let (words, len) = command(&written).unwrap();
            assert_eq!((words[0].as_slice(), len), (first.as_bytes(), written.len()));
            assert!(len < 64);
            for part in ["+O", "K\r\n"] {
                assert!(link.poll_transmit().is_empty());
                link.handle_input(part.as_bytes());
                assert_eq!(link.poll_event(now), None);
            }
            let rest = written.len();
            let written = self::written(&mut link);
            assert!(written.len() > rest && written.windows(4).any(|word| word == b"LOAD"));
            assert_eq!(written.windows(7).any(|word| word == b"EVALSHA"), now == 0);
            link.handle_disconnected(now);
            while link.poll_event(now).is_some() {}
        }
    }
}

/// All that a link has to write, a few bytes at a time.
fn written(link: &mut Link) -> Vec<u8> {
    let mut written = Vec::new();
    loop {
        let bytes = link.poll_transmit();
        let count = bytes.len().min(3);
        if count == 0 {
            return written;
        }
        written.extend_from_slice(&bytes[..count]);
        link.transmitted(count);
    }
}

#[test]
fn a_first_command_is_refused_in_the_servers_own_words_or_it_does_not_matter() {
    let named = LinkConfig { password: None, database: 0, ..config() };
    let unnamed = LinkConfig { name: None, ..named.clone() };
    let auth = Some(Why::Auth);
    let other = Some(Why::Script(b""));
    for (config, answer, expected) in [
        (&named, "NOAUTH Authentication required.", auth),
        (&named, "DENIED Redis is running in protected mode", other),
        (&named, "ERR max number of clients reached", other),
        (&named, "ERR unknown command 'client'", None),
        (&named, "NOPERM this user has no permissions", None),
        (&unnamed, "NOAUTH Authentication required.", auth),
        (&unnamed, "WRONGPASS invalid username-password pair", auth),
        (&unnamed, "LOADING Redis is loading", Some(Why::Loading)),
        (&unnamed, "ERR max number of clients reached", other),
        (&unnamed, "NOPERM this user has no permissions", None),
    ] {
        let mut link = Link::new(config).unwrap();
        assert_eq!(link.poll_event(0), Some(Event::Connect));
        link.handle_connected(0);
        written(&mut link);
        link.handle_input(std::format!("-{answer}\r\n").as_bytes());
        let told = expected.map(|why| Event::Disconnect { why });
        assert_eq!(link.poll_event(0), told, "{answer}");
        assert_eq!(link.last_error(), if told.is_some() { answer.as_bytes() } else { b"" });
        assert_eq!(written(&mut link).is_empty(), told.is_some(), "{answer}");
    }
}

#[test]
fn what_a_server_says_before_it_is_asked_is_a_reason() {
    let mut link = Link::new(&config()).unwrap();
    assert_eq!(link.poll_event(0), Some(Event::Connect));
    link.handle_connected(0);
    link.handle_input(b"-ERR max number of clients reached\r\n");
    assert_eq!(link.poll_event(0), Some(Event::Disconnect { why: Why::Script(b"") }));
    assert_eq!(link.last_error(), b"ERR max number of clients reached");
}

#[test]
fn replies_that_came_before_the_end_count() {
    let mut model = Model::ready();
    for _ in 0..3 {
        model.take(Do::Send(20, 10));
    }
    model.take(Do::Write(190)); // two of the three, and no more than a part of the last
    model.server.serve(1);
    let reply = core::mem::take(&mut model.server.output);
    assert_eq!(model.link.handle_input(&reply), reply.len());
    model.take(Do::Cut);
    assert_eq!(model.over[&0], Ok(()));
    assert_eq!(model.over[&1], Err("disconnected"));
    assert!(model.over[&2].is_err());
}

#[test]
fn only_legal_configurations_make_a_link() {
    let refused = |config: LinkConfig<'_>| Link::new(&config).unwrap_err();
    assert_eq!(refused(LinkConfig { transmit_bytes: 1, ..config() }), LinkError::Buffer(1));
    assert_eq!(refused(LinkConfig { receive_bytes: 1 << 30, ..config() }), LinkError::Buffer(1 << 30));
    assert_eq!(refused(LinkConfig { in_flight: 0, ..config() }), LinkError::InFlight(0));
    assert_eq!(refused(LinkConfig { stall_timeout: 5, ..config() }), LinkError::Timeout(5));
    assert_eq!(refused(LinkConfig { backoff: (MS, 1), ..config() }), LinkError::Backoff(MS, 1));
    let long = std::vec![b'x'; 70_000];
    assert_eq!(refused(LinkConfig { password: Some(&long), ..config() }), LinkError::Credentials(70_000));
}

#[test]
fn what_was_passed_over_has_no_reply_wherever_it_stood() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 10));
    model.take(Do::Write(5000));
    model.take(Do::Send(20, 10));
    model.take(Do::Send(20, 10));
    model.take(Do::Cancel(2)); // the one between
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(())), (&2, &Ok(()))]);
}

#[test]
fn a_new_connection_remembers_nothing_of_the_last_one() {
    let mut model = Model::ready();
    // Lost while a script is loaded again, and in the middle of a reply.
    model.take(Do::Send(20, 100));
    model.take(Do::Write(5000));
    model.take(Do::Serve(1));
    model.take(Do::Read(6)); // "*2", and no more
    model.take(Do::Cut);
    model.take(Do::Wait(10));
    model.settle();
    assert_eq!(model.connects, 2);
    model.take(Do::Flush);
    model.take(Do::Send(20, 100));
    model.take(Do::Write(5000));
    model.take(Do::Serve(1));
    model.take(Do::Read(5000));
    model.take(Do::Cut);
    model.take(Do::Wait(20));
    model.settle();
    assert_eq!(model.connects, 3);
    model.take(Do::Flush);
    model.take(Do::Send(20, 100));
    model.settle();
    let why: Vec<_> = model.over.values().copied().collect();
    assert_eq!(why, [Err("disconnected"), Err("not_ready"), Ok(())]);
}

#[test]
fn after_a_call_that_was_answered_the_first_wait_is_short_again() {
    let mut model = Model::ready();
    for _ in 0..10 {
        model.take(Do::Cut);
        model.take(Do::Wait(500));
        model.settle();
    }
    model.take(Do::Send(20, 100));
    model.settle();
    let connects = model.connects;
    model.take(Do::Cut);
    model.take(Do::Wait(10));
    assert_eq!(model.connects, connects + 1);
}
