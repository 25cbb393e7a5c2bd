//! Dice that fall the same way for the same seed, so that a run can be repeated.

/// A generator of numbers (SplitMix64): fast, and good enough to choose directives.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Dice for this seed. Seeds that differ in one bit give sequences that have nothing in common.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Dice of their own for a part of the run, which stay the same whatever the other parts take.
    pub fn part(&self, number: u64) -> Self {
        let mut dice = Self::new(self.state ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.roll();
        dice
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            return 0;
        }
        let number = self.roll() % (bound as u64);
        usize::try_from(number).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `times` of `of` throws.
    pub fn chance(&mut self, times: usize, of: usize) -> bool {
        self.below(of) < times
    }

    /// One of these, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// One of these words, which must not be none.
    pub fn word<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// Up to `most` of these, each once, in their order.
    pub fn some<'a>(&mut self, from: &[&'a str], most: usize) -> Vec<&'a str> {
        let mut left = self.below(most + 1).min(from.len());
        let mut chosen = Vec::new();
        for (i, word) in from.iter().enumerate() {
            if left > 0 && self.chance(left, from.len() - i) {
                chosen.push(*word);
                left -= 1;
            }
        }
        chosen
    }
}
