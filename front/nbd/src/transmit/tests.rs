//! Both halves of a connection against streams that cut bytes anywhere.

use super::answer::Replies;
use super::input::{Incoming, Input, Payload};
use super::output::Output;
use super::work::{Answer, Failure};
use crate::export::{EXTENTS_LIMIT, Extent};
use crate::memory::{Budget, OWN_BYTES};
use crate::protocol::{Command, Errno, REQUEST_MAGIC, Request};
use kura_block::BufMut;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that moves at most so many bytes at each call, and is not ready at every zero.
struct Choppy {
    incoming: VecDeque<u8>,
    sent: Vec<u8>,
    cuts: Vec<usize>,
    calls: usize,
}

impl Choppy {
    fn new(incoming: Vec<u8>, cuts: Vec<usize>) -> Self {
        Self { incoming: incoming.into(), sent: Vec::new(), cuts, calls: 0 }
    }

    /// What the next call may move.
    fn cut(&mut self, cx: &Context<'_>) -> Poll<usize> {
        let cut = self.cuts[self.calls % self.cuts.len()];
        self.calls += 1;
        if cut == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(cut)
    }
}

impl AsyncRead for Choppy {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.cut(cx).map(|cut| {
            let len = cut.min(buf.remaining()).min(self.incoming.len());
            let bytes: Vec<u8> = self.incoming.drain(..len).collect();
            buf.put_slice(&bytes);
            Ok(())
        })
    }
}

impl AsyncWrite for Choppy {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cut(cx).map(|cut| {
            let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).take(cut).collect();
            self.sent.extend_from_slice(&bytes);
            Ok(bytes.len())
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cut(cx).map(|_| Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    // One that moves something, so that there is an end.
    prop::collection::vec(prop_oneof![Just(0usize), 1..40usize, 1..200_000usize], 1..20)
        .prop_map(|cuts| [cuts, vec![5000]].concat())
}

fn encode(command: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    let head = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0], &command.to_be_bytes(), &cookie.to_be_bytes()].concat();
    [&head[..], &[0; 8], &len.to_be_bytes(), payload].concat()
}

const PAYLOAD_LIMIT: usize = 150_000;

proptest! {
    #[test]
    fn requests_survive_any_cut(
        payloads in prop::collection::vec(prop_oneof![Just(None), (0..9000usize).prop_map(Some), (0..200_000usize).prop_map(Some)], 0..12),
        cuts in cuts(),
    ) {
        let payload = |at: usize, len: usize| (0..len).map(|byte| (byte + at) as u8).collect::<Vec<_>>();
        let mut bytes = Vec::new();
        for (at, len) in payloads.iter().enumerate() {
            match len {
                Some(len) => bytes.extend(encode(1, at as u64, &payload(at, *len))),
                None => bytes.extend(encode(3, at as u64, b"")),
            }
        }
        let mut stream = Choppy::new(bytes, cuts);
        let mut input = Input::new(PAYLOAD_LIMIT, 0, None);
        let mut next = || block_on(poll_fn(|cx| input.poll_next(&mut stream, 0, cx))).unwrap();
        for (at, len) in payloads.iter().enumerate() {
            match (next(), len) {
                (Incoming::Request(Request { command: Command::Flush, cookie, .. }, Payload { data, .. }), None) => {
                    prop_assert_eq!((cookie, data.len()), (at as u64, 0));
                }
                (Incoming::Request(Request { command: Command::Write, cookie, .. }, Payload { data, .. }), Some(len)) => {
                    prop_assert_eq!(cookie, at as u64);
                    prop_assert_eq!(&*data.contiguous(), &payload(at, *len));
                }
                (Incoming::Oversized(request), Some(len)) => {
                    prop_assert!(*len > PAYLOAD_LIMIT && request.cookie == at as u64);
                }
                _ => prop_assert!(false, "request {} came out as something else", at),
            }
        }
        prop_assert!(matches!(next(), Incoming::End));
    }

    #[test]
    fn replies_survive_any_cut(
        turns in prop::collection::vec(prop::collection::vec((any::<bool>(), 1..3000usize), 0..200), 1..4),
        cuts in cuts(),
    ) {
        let mut stream = Choppy::new(Vec::new(), cuts);
        let mut output = Output::default();
        let mut expected = Vec::new();
        for turn in turns {
            for (at, (head, len)) in turn.into_iter().enumerate() {
                let bytes = vec![at as u8; len];
                expected.extend_from_slice(&bytes);
                if head {
                    output.head(&bytes);
                } else {
                    output.data(BufMut::copy_of(&bytes).freeze());
                }
                output.end_reply(None);
            }
            // One try that may stop half way: what comes next gathers behind it.
            let mut cx = Context::from_waker(futures::task::noop_waker_ref());
            let _ = output.poll_send(&mut stream, &mut cx);
            prop_assert!(stream.sent.len() + output.bytes() >= expected.len());
        }
        block_on(poll_fn(|cx| output.poll_send(&mut stream, cx))).unwrap();
        prop_assert!(output.is_empty() && output.bytes() == 0 && output.replies() == 0);
        prop_assert_eq!(stream.sent, expected);
    }
}

#[test]
fn no_buffer_keeps_all_of_a_large_write() {
    let payload: Vec<u8> = (0..(5usize << 19) + 7).map(|at| (at % 251) as u8).collect();
    for cuts in [vec![1 << 20], vec![5000, 100_000, 0], vec![4096, 131_072], vec![3 << 20]] {
        let sent = [encode(1, 1, &payload), encode(3, 2, b"")].concat();
        let mut stream = Choppy::new(sent, cuts);
        let mut input = Input::new(4 << 20, 0, None);
        let mut next = || block_on(poll_fn(|cx| input.poll_next(&mut stream, 0, cx))).unwrap();
        let Incoming::Request(_, Payload { data, .. }) = next() else { panic!("not a write") };
        assert_eq!(data.parts().iter().map(|part| part.len()).collect::<Vec<_>>(), [1 << 20, 1 << 20, (1 << 19) + 7]);
        assert!(data.contiguous()[..] == payload);
        assert!(matches!(next(), Incoming::Request(Request { command: Command::Flush, cookie: 2, .. }, _)));
    }
}

#[test]
fn what_came_is_counted_beyond_one_write() {
    let payload = vec![7; OWN_BYTES + 1];
    let sent = (0..3).flat_map(|cookie| encode(1, cookie, &payload)).collect();
    let mut stream = Choppy::new(sent, vec![100_000, 0]);
    let mut input = Input::new(4 << 20, 0, Some(Budget::new(1 << 20)));
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    let (mut writes, mut came) = (0, Vec::new());
    while writes < 3 {
        writes += usize::from(input.poll_next(&mut stream, 0, &mut cx).is_ready());
        came.extend(input.withheld().map(|(came, _)| came));
    }
    assert!(came.is_sorted() && came.last().is_some_and(|came| *came > 2 * OWN_BYTES), "{came:?}");
}

/// A connection with a read of all of the budget, whose header has come.
fn reader(budget: &Arc<Budget>) -> impl FnMut(bool) -> Option<Incoming> {
    let mut header = encode(0, 1, b"");
    header[24..].copy_from_slice(&(1_u32 << 20).to_be_bytes());
    let (mut stream, mut input) = (Choppy::new(header, vec![100]), Input::new(4 << 20, 0, Some(Arc::clone(budget))));
    move |is_polled| {
        if !is_polled {
            input.stand_back();
            return None;
        }
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        match input.poll_next(&mut stream, 0, &mut cx) {
            Poll::Ready(Ok(incoming)) => Some(incoming),
            _ => None,
        }
    }
}

#[test]
fn who_is_not_listened_to_leaves_the_line_for_memory() {
    let budget = Budget::new(1 << 20);
    let [mut first, mut second, mut third] = [(); 3].map(|()| reader(&budget));
    let served = first(true).expect("there is memory");
    assert!(second(true).is_none() && third(true).is_none(), "there is no more");
    second(false);
    drop(served);
    let served = third(true).expect("nobody is before it");
    assert!(second(true).is_none());
    drop(served);
    assert!(second(true).is_some(), "it stands in line again");
}

#[test]
fn who_has_room_of_its_own_again_waits_for_nobody() {
    let budget = Budget::new(1 << 20);
    let served = reader(&budget)(true).expect("there is memory");
    let mut header = encode(0, 1, b"");
    header[24..].copy_from_slice(&4096_u32.to_be_bytes());
    let (mut stream, mut input) = (Choppy::new(header, vec![100]), Input::new(4 << 20, 0, Some(Arc::clone(&budget))));
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    assert!(input.poll_next(&mut stream, OWN_BYTES, &mut cx).is_pending(), "all is taken");
    assert!(input.poll_next(&mut stream, OWN_BYTES - 4096, &mut cx).is_ready());
    assert!(!budget.is_short(), "it left the line");
    drop(served);
}

#[test]
fn what_was_read_keeps_no_more_memory_than_was_asked_for() {
    let written = BufMut::copy_of(&vec![7; 1 << 20]).freeze();
    for is_structured in [false, true] {
        let mut replies = Replies::new(is_structured);
        for (at, len) in [(0, 4096), (1, 4096), (2, 512), (0, 1 << 20)] {
            let request = Request { command: Command::Read, flags: 0, cookie: 1, offset: at * 4096, len: len as u32 };
            let begin = at as usize * 4096;
            replies.put(&request, Ok(Answer::Data(written.slice(begin..begin + len).into())), None);
        }
        let held = replies.output.memory_bytes();
        assert!((1 << 20..=(1 << 20) + 3 * 4096).contains(&held), "{held}");
    }
}

#[test]
fn what_is_told_of_ranges_takes_memory() {
    let status = Request { command: Command::BlockStatus, flags: 0, cookie: 1, offset: 0, len: 4096 };
    assert!(status.held_bytes(1) < 1024 && status.held_bytes(0) == 0);
    let whole = Request { len: u32::MAX, ..status };
    assert_eq!(whole.held_bytes(3), 3 * EXTENTS_LIMIT * 16);
    let extents = (0..EXTENTS_LIMIT as u32 + 5).map(|at| Extent { len_bytes: 512, flags: at % 2 }).collect();
    let mut replies = Replies::new(true);
    replies.put(&whole, Ok(Answer::Status(vec![extents])), None);
    let mut stream = Choppy::new(Vec::new(), vec![1 << 20]);
    block_on(poll_fn(|cx| replies.output.poll_send(&mut stream, cx))).unwrap();
    assert_eq!(stream.sent.len(), 20 + 4 + 8 * EXTENTS_LIMIT, "the client asks again for the rest");
}

#[test]
fn an_error_is_told_in_as_many_words_as_qemu_takes() {
    let request = Request { command: Command::Read, flags: 0, cookie: 1, offset: 0, len: 1 };
    let mut replies = Replies::new(true);
    let failure = Failure { errno: Errno::Io, text: "ä".repeat(4000).into() };
    replies.put(&request, Err(failure), None);
    let mut stream = Choppy::new(Vec::new(), vec![5000]);
    block_on(poll_fn(|cx| replies.output.poll_send(&mut stream, cx))).unwrap();
    let (head, payload) = stream.sent.split_at(20);
    assert_eq!(head[16..], (payload.len() as u32).to_be_bytes());
    assert!(payload.len() <= 1000 && std::str::from_utf8(&payload[6..]).is_ok_and(|text| text.len() == 512));
}
