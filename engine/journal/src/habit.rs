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
}

impl Habit {
    /// A record was appended.
    pub fn appended(&mut self) {
        self.unasked = self.unasked.saturating_add(1);
        if self.unasked > 1 {
            self.times = 0;
        }
    }

    /// Somebody asks for what was appended to be durable.
    pub fn asked(&mut self) {
        self.times = self.times.saturating_add(u32::from(self.unasked == 1));
        self.unasked = 0;
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
            habit.appended();
            assert!(!habit.expects());
            habit.asked();
            habit.asked();
            assert!(!habit.expects(), "nothing to be asked for");
        }
        habit.appended();
        assert!(habit.expects());
        habit.appended();
        assert!(!habit.expects(), "the first was not asked for");
        habit.asked();
        habit.appended();
        assert!(!habit.expects(), "once is no habit");
    }
}
