//! The tables of a loop after a peak: tasks, timers and descriptors have places there that are used again, some 130 bytes for each
//! connection, and twice as much after the last doubling. Those at the end can go ([`crate::shrink_tables`]).

/// How many of `count` places there are up to the last one that is not `free`.
pub(crate) fn used_places(count: usize, free: &[u32]) -> usize {
    let mut is_free = vec![false; count];
    for index in free {
        is_free[*index as usize] = true;
    }
    let last = is_free.iter().rposition(|is_free| !is_free);
    last.map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_behind_the_last_used_one_do_not_count() {
        assert_eq!(used_places(0, &[]), 0);
        assert_eq!(used_places(3, &[0, 2, 1]), 0);
        assert_eq!(used_places(4, &[3, 1]), 3);
        assert_eq!(used_places(2, &[0]), 2);
    }
}
