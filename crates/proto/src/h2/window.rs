//! Flow-control windows (RFC 9113, section 5.2).

/// The number of bytes that may still be sent or received. It may be negative: a smaller
/// `SETTINGS_INITIAL_WINDOW_SIZE` applies to what was already sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControlWindow(i32);

/// The window would exceed 2^31-1: FLOW_CONTROL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

impl FlowControlWindow {
    /// The size of every window before settings say otherwise, in bytes.
    pub const DEFAULT: u32 = 65_535;

    /// The largest window, in bytes.
    pub const MAX: u32 = i32::MAX as u32;

    /// A window of `size` bytes, at most [`FlowControlWindow::MAX`].
    pub const fn new(size: u32) -> FlowControlWindow {
        FlowControlWindow(if size > FlowControlWindow::MAX {
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
    pub fn consume(&mut self, n: u32) -> bool {
        let enough = n <= self.available();
        if enough {
            self.0 -= n as i32;
        }
        enough
    }

    /// WINDOW_UPDATE: adds `n` bytes.
    pub fn replenish(&mut self, n: u32) -> Result<(), WindowOverflow> {
        self.adjust_size(i64::from(n))
    }

    /// Adds `change`, such as that of the initial size while the window is in use (section 6.9.2).
    pub fn adjust_size(&mut self, change: i64) -> Result<(), WindowOverflow> {
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
        let mut window = FlowControlWindow::new(10);
        assert!(window.consume(10) && !window.consume(1));
        window.replenish(5).expect("far from the bound");
        window.adjust_size(-8).expect("far from the bound");
        assert_eq!(window.available(), 0);
        assert!(window.consume(0) && !window.consume(1));
        window.replenish(4).expect("far from the bound");
        assert_eq!(window.available(), 1);
    }

    #[test]
    fn overflows_at_the_bound_and_not_before() {
        let mut window = FlowControlWindow::new(FlowControlWindow::MAX);
        assert_eq!(window.replenish(1), Err(WindowOverflow));
        assert_eq!(window.available(), FlowControlWindow::MAX);
        assert!(window.consume(1));
        assert_eq!(window.replenish(1), Ok(()));
        assert_eq!(
            FlowControlWindow::new(u32::MAX).available(),
            FlowControlWindow::MAX
        );
    }
}
