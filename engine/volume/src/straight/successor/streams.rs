//! Where large writes go on: a decision, no I/O.

/// Streams that are told apart.
const STREAMS: usize = 8;

/// Where the last large writes to a volume ended. A write that begins there, or at the volume's beginning, goes on with a stream.
#[derive(Default)]
pub(crate) struct Streams {
    /// Of the streams, the one that has rested longest first: it is given up for a new one.
    ends: [u64; STREAMS],
}

impl Streams {
    /// Notes a write of the blocks from `first` to before `end`; true when it goes on with a stream.
    pub fn goes_on(&mut self, first: u64, end: u64) -> bool {
        let known = self.ends.iter().position(|ended| *ended == first);
        let stream = known.unwrap_or_default();
        self.ends[stream] = end;
        self.ends[stream..].rotate_left(1);
        known.is_some() || first == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_go_on_beside_each_other() {
        let mut streams = Streams::default();
        for from in (0..STREAMS as u64).map(|stream| stream * 1000) {
            assert_eq!(streams.goes_on(from, from + 10), from == 0, "{from}");
        }
        for at in (10..100).step_by(10) {
            for from in (0..STREAMS as u64).map(|stream| stream * 1000 + at) {
                assert!(streams.goes_on(from, from + 10), "{from}");
            }
        }
        assert!(!streams.goes_on(55, 65), "it begins where none ended");
        assert!(streams.goes_on(0, 10), "a volume's beginning");
    }

    #[test]
    fn writes_here_and_there_are_no_stream() {
        let mut streams = Streams::default();
        let went_on = (1..1000_u64).filter(|at| streams.goes_on(at * 7919 % 10_000 + 1, at * 7919 % 10_000 + 33));
        assert!(went_on.count() < 20);
    }
}
