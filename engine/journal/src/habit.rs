//! Whether somebody is about to ask for what was just appended: a decision, no I/O.

/// Records one after the other, each asked for before the next came, until the next one is expected to be asked for too.
const HABIT: u32 = 3;

/// What a client does who writes and flushes in turn: its flush is a round trip behind its write. Once that is its habit,
/// the entry is written while the flush is on its way.
#[derive(Default)]
pub(crate) struct Habit {
    /// Records appended since anybody asked.
    unasked: u32,
    /// How many times in a row one record was appended, then asked for.
    times: u32,
    /// Bytes of data appended since anybody asked.
    unasked_bytes: u64,
    /// What that was when somebody asked last; none before.
    asked_bytes: Option<u64>,
}

impl Habit {
    /// A record was appended, for so many bytes of data.
    pub fn appended(&mut self, bytes: u64) {
        self.unasked_bytes += bytes;
        self.unasked = self.unasked.saturating_add(1);
        if self.unasked > 1 {
            self.times = 0;
        }
    }

    /// Somebody asks for what was appended to be durable.
    pub fn asked(&mut self) {
        self.times = self.times.saturating_add(u32::from(self.unasked == 1));
        if self.unasked > 0 {
            self.asked_bytes = Some(self.unasked_bytes);
        }
        (self.unasked, self.unasked_bytes) = (0, 0);
    }

    /// Data is asked for after fewer bytes than these, as far as one can tell.
    pub fn is_asked_often(&self, bytes: u64) -> bool {
        self.asked_bytes.is_some_and(|asked| asked.max(self.unasked_bytes) < bytes)
    }

    /// The last record is going to be asked for.
    pub fn expects(&self) -> bool {
        self.unasked == 1 && self.times >= HABIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_flushes_in_turn_are_a_habit_until_a_flush_is_missing() {
        let mut habit = Habit::default();
        for _ in 0..HABIT {
            habit.appended(0);
            assert!(!habit.expects());
            habit.asked();
            habit.asked();
            assert!(!habit.expects(), "nothing to be asked for");
        }
        habit.appended(0);
        assert!(habit.expects());
        habit.appended(0);
        assert!(!habit.expects(), "the first was not asked for");
        habit.asked();
        habit.appended(0);
        assert!(!habit.expects(), "once is no habit");
    }
    #[test]
    fn a_stream_is_not_asked_for_often_until_it_is() {
        const OFTEN: u64 = 1 << 20;
        let mut habit = Habit::default();
        habit.appended(4096);
        assert!(!habit.is_asked_often(OFTEN), "nobody ever asked");
        habit.asked();
        habit.asked();
        assert!(habit.is_asked_often(OFTEN));
        habit.appended(OFTEN - 1);
        assert!(habit.is_asked_often(OFTEN));
        habit.appended(1);
        assert!(!habit.is_asked_often(OFTEN), "a stream has begun");
        habit.asked();
        assert!(!habit.is_asked_often(OFTEN), "and was asked for as a whole");
        habit.appended(4096);
        habit.asked();
        assert!(habit.is_asked_often(OFTEN));
    }
}
