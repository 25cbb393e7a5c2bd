//! Flow-control windows (RFC 9113, section 5.2).

/// The number of bytes that may still be sent or received. It may be negative: a smaller
/// `SETTINGS_INITIAL_WINDOW_SIZE` applies to what was already sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(i32);

/// The window would exceed 2^31-1: FLOW_CONTROL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

impl Window {
    /// The size of every window before settings say otherwise, in bytes.
    pub const DEFAULT: u32 = 65_535;

    /// The largest window, in bytes.
    pub const MAX: u32 = i32::MAX as u32;

    /// A window of `size` bytes, at most [`Window::MAX`].
    pub const fn new(size: u32) -> Window {
        Window(if size > Window::MAX {
            i32::MAX
        } else {
            size as i32
        })
    }

    /// The bytes that may be sent now.
    pub fn available(self) -> u32 {
        self.0.max(0) as u32
    }

    /// Takes `n` bytes; `false` if there are not enough, and then nothing is taken.
    pub fn take(&mut self, n: u32) -> bool {
        let enough = n <= self.available();
        if enough {
            self.0 -= n as i32;
        }
        enough
    }

    /// WINDOW_UPDATE: adds `n` bytes.
    pub fn give(&mut self, n: u32) -> Result<(), WindowOverflow> {
        self.shift(i64::from(n))
    }

    /// Adds `change`, such as that of the initial size while the window is in use (section 6.9.2).
    pub fn shift(&mut self, change: i64) -> Result<(), WindowOverflow> {
        // The sum of two values of at most 33 bits cannot overflow.
        let sum = i64::from(self.0) + change;
        self.0 = i32::try_from(sum).map_err(|_| WindowOverflow)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_gives_and_goes_negative() {
        let mut window = Window::new(10);
        assert!(window.take(10) && !window.take(1));
        window.give(5).expect("far from the bound");
        window.shift(-8).expect("far from the bound");
        assert_eq!(window.available(), 0);
        assert!(window.take(0) && !window.take(1));
        window.give(4).expect("far from the bound");
        assert_eq!(window.available(), 1);
    }

    #[test]
    fn overflows_at_the_bound_and_not_before() {
        let mut window = Window::new(Window::MAX);
        assert_eq!(window.give(1), Err(WindowOverflow));
        assert_eq!(window.available(), Window::MAX);
        assert!(window.take(1));
        assert_eq!(window.give(1), Ok(()));
        assert_eq!(Window::new(u32::MAX).available(), Window::MAX);
    }
}
