//! CUBIC (RFC 9438): how much may be on the way.
//!
//! quinn-proto has one of its own, which stands still for about a second after each loss but the first: its curve begins
//! below the window (its K is that of a window that was reduced from W_max, also where fast convergence has lowered W_max). It
//! also goes on from a Reno estimate below the window, and keeps that estimate slow when it has reached the former window. Over a
//! path of 100 ms that loses a packet of a thousand that was a tenth of the goodput; TCP's CUBIC in the kernel has none of this.
//!
//! ```text
//!               W_max ┄┄┄┄┄┄┄┄┄┄╭──────╯        concave up to W_max, then convex: it looks for more
//!     ╱loss         ╭────────╯
//!    ╱ │ × 0.7   ╭──╯  ◀─── K ───▶
//! ──╯  ╰─────────╯
//! ```

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// By how much a loss reduces the window (section 4.6).
const BETA: f64 = 0.7;

/// How steep the curve is, in segments per second³ (section 5.1).
const C: f64 = 0.4;

/// By how many segments the Reno estimate grows for each window that was acknowledged, so that it has the mean of one that
/// halves its window (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// How much faster than the window the target may be (section 4.2).
const STEEPEST: f64 = 1.5;

/// The initial window: ten segments, but no more than this (RFC 9002, section 7.2), in bytes.
const INITIAL: f64 = 14_720.0;

/// Makes controllers.
#[derive(Debug, Default)]
pub(super) struct CubicFactory;

impl ControllerFactory for CubicFactory {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(CubicWindow::new(current_mtu))
    }
}

/// The window of a path. All windows are in bytes.
#[derive(Clone, Debug)]
struct CubicWindow {
    window: f64,
    /// Below it is slow start.
    threshold: f64,
    /// What was sent before this belongs to the loss that has been answered.
    recovery: Option<Instant>,
    /// The window before the last loss, less if that was below the one before: others need room.
    w_max: f64,
    avoidance: Option<AvoidanceStage>,
    segment: f64,
    /// When nothing was on the way any more.
    idle_since: Option<Instant>,
}

/// Congestion avoidance since a loss, or since slow start has ended without one.
#[derive(Clone, Copy, Debug)]
struct AvoidanceStage {
    /// When it began: with the first acknowledgement of something sent after the loss.
    began: Option<Instant>,
    /// The last acknowledgement.
    last: Option<Instant>,
    /// When the curve is at W_max, in seconds.
    k: f64,
    /// What Reno would have.
    reno: f64,
    /// The window before the loss.
    prior: f64,
}

impl CubicWindow {
    fn new(mtu: u16) -> CubicWindow {
        let segment = f64::from(mtu);
        CubicWindow {
            window: initial(segment),
            threshold: f64::INFINITY,
            recovery: None,
            w_max: 0.0,
            avoidance: None,
            segment,
            idle_since: None,
        }
    }

    fn least(&self) -> f64 {
        2.0 * self.segment
    }

    fn acknowledge(&mut self, now: Instant, sent: Instant, bytes: f64, rtt: Duration) {
        if self.recovery.is_some_and(|recovery| sent <= recovery) {
            return;
        }
        match self.window < self.threshold {
            true => self.window += bytes,
            false => self.avoid(now, bytes, rtt),
        }
    }

    /// Congestion avoidance: what an acknowledgement of these bytes adds.
    fn avoid(&mut self, now: Instant, bytes: f64, rtt: Duration) {
        let (window, segment) = (self.window, self.segment);
        let stage = self.avoidance.get_or_insert_with(|| {
            // Slow start has ended without a loss (section 4.10).
            self.w_max = window;
            AvoidanceStage::of(window, window, window, segment)
        });
        let began = *stage.began.get_or_insert(now);
        stage.last = Some(now);
        let at = now.saturating_duration_since(began).as_secs_f64();
        let alpha = if stage.reno < stage.prior { ALPHA } else { 1.0 };
        stage.reno += alpha * segment * bytes / window;
        let curve = |at: f64| C * segment * (at - stage.k).powi(3) + self.w_max;
        if curve(at) < stage.reno {
            self.window = window.max(stage.reno);
        } else {
            let target = curve(at + rtt.as_secs_f64()).clamp(window, STEEPEST * window);
            self.window += (target - window) * bytes / window;
        }
    }

    /// The curve stands still while there is nothing to send (section 5.8).
    fn pause(&mut self, now: Instant) {
        if let Some(stage) = &mut self.avoidance
            && let (Some(began), Some(last)) = (&mut stage.began, &mut stage.last)
        {
            *began += now.saturating_duration_since(*last);
            *last = now;
        }
    }
}

impl AvoidanceStage {
    /// From this window on, after one of `prior` bytes.
    fn of(window: f64, w_max: f64, prior: f64, segment: f64) -> AvoidanceStage {
        AvoidanceStage {
            began: None,
            last: None,
            k: ((w_max - window).max(0.0) / segment / C).cbrt(),
            reno: window,
            prior,
        }
    }
}

fn initial(segment: f64) -> f64 {
    (10.0 * segment).min(INITIAL.max(2.0 * segment))
}

impl Controller for CubicWindow {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        if self.idle_since.take().is_some() {
            self.pause(now);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if app_limited {
            return self.pause(now);
        }
        self.acknowledge(now, sent, bytes as f64, rtt.get());
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _: bool, _: Option<u64>) {
        if in_flight == 0 {
            self.idle_since = Some(now);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _lost_bytes: u64,
    ) {
        if self.recovery.is_some_and(|recovery| sent <= recovery) {
            return;
        }
        self.recovery = Some(now);
        let prior = self.window;
        // Fast convergence (section 4.7).
        self.w_max = match prior < self.w_max {
            true => prior * (1.0 + BETA) / 2.0,
            false => prior,
        };
        self.threshold = (prior * BETA).max(self.least());
        self.window = self.threshold;
        let stage = AvoidanceStage::of(self.window, self.w_max, prior, self.segment);
        self.avoidance = Some(stage);
        if is_persistent_congestion {
            // RFC 9002, section 7.6.2: as if the path were new, but with what is known of its threshold.
            self.recovery = None;
            self.avoidance = None;
            self.window = self.least();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        let former = std::mem::replace(&mut self.segment, f64::from(new_mtu));
        // Nothing is known of the path but this (RFC 9002, section 7.2).
        if self.threshold.is_infinite() {
            self.window += (initial(self.segment) - initial(former)).max(0.0);
        }
        self.window = self.window.max(self.least());
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.ssthresh = self.threshold.is_finite().then_some(self.threshold as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        initial(self.segment) as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);
    const SEGMENT: f64 = 1200.0;

    /// A path on which a window is sent and acknowledged in each round trip.
    struct SimulatedPath {
        cubic: CubicWindow,
        now: Instant,
        /// Segments until the next loss.
        until_loss: u32,
        every: u32,
        sent: f64,
    }

    impl SimulatedPath {
        fn new(every: u32) -> SimulatedPath {
            SimulatedPath {
                cubic: CubicWindow::new(SEGMENT as u16),
                now: Instant::now(),
                until_loss: every,
                every,
                sent: 0.0,
            }
        }

        fn round(&mut self) {
            let segments = (self.cubic.window / SEGMENT) as u32;
            let gap = RTT / segments;
            for _ in 0..segments {
                self.now += gap;
                let sent = self.now - RTT;
                self.until_loss -= 1;
                if self.until_loss == 0 {
                    self.until_loss = self.every;
                    self.cubic.on_congestion_event(self.now, sent, false, 1200);
                } else {
                    self.cubic.acknowledge(self.now, sent, SEGMENT, RTT);
                }
            }
            self.sent += f64::from(segments);
        }
    }

    #[test]
    fn slow_start_doubles_the_window() {
        let mut path = SimulatedPath::new(u32::MAX);
        for power in 0..6 {
            assert_eq!(path.cubic.window(), (10 << power) * 1200);
            path.round();
        }
    }

    #[test]
    fn after_each_loss_the_window_grows_at_once() {
        let mut path = SimulatedPath::new(u32::MAX);
        for _ in 0..6 {
            path.round();
        }
        for loss in 0..3 {
            let before = path.cubic.window;
            let (now, sent) = (path.now, path.now - RTT / 2);
            path.cubic.on_congestion_event(now, sent, false, 1200);
            assert_eq!(path.cubic.window, before * BETA, "loss {loss}");
            // What was sent before the loss says nothing more.
            path.cubic.on_congestion_event(now, sent, false, 1200);
            path.cubic.acknowledge(now, sent, SEGMENT, RTT);
            assert_eq!(path.cubic.window, before * BETA);
            path.now += RTT * 2;
            let reduced = path.cubic.window;
            path.round();
            path.round();
            assert!(path.cubic.window > reduced + 2.0 * SEGMENT, "loss {loss}");
            assert!(path.cubic.window < before, "loss {loss}");
        }
    }

    #[test]
    fn the_curve_is_at_the_former_window_after_k_and_goes_on() {
        let mut path = SimulatedPath::new(u32::MAX);
        for _ in 0..6 {
            path.round();
        }
        let (before, now) = (path.cubic.window, path.now);
        path.cubic
            .on_congestion_event(now, now - RTT / 2, false, 1200);
        let k = (before * (1.0 - BETA) / SEGMENT / C).cbrt();
        path.now += RTT;
        while path.now < now + Duration::from_secs_f64(k) {
            path.round();
        }
        let reached = path.cubic.window / before;
        assert!((0.98..1.02).contains(&reached), "{reached}");
        // Six seconds later it has 0.4 × 6³ segments more.
        for _ in 0..60 {
            path.round();
        }
        let more = (path.cubic.window - before) / SEGMENT;
        assert!((60.0..90.0).contains(&more), "{more}");
    }

    #[test]
    fn with_one_loss_in_a_thousand_it_has_at_least_what_reno_has() {
        let mut path = SimulatedPath::new(1000);
        for _ in 0..2000 {
            path.round();
        }
        // RFC 5681 and a window that halves: √(3/2p). RFC 9438, section 5.1, has less for CUBIC alone.
        let mean = path.sent / 2000.0;
        assert!((38.0..55.0).contains(&mean), "{mean}");
    }

    #[test]
    fn while_nothing_is_sent_the_curve_stands_still() {
        let mut path = SimulatedPath::new(u32::MAX);
        for _ in 0..6 {
            path.round();
        }
        let now = path.now;
        path.cubic
            .on_congestion_event(now, now - RTT / 2, false, 1200);
        path.now += RTT;
        path.round();
        let mut pausing = path.cubic.clone();
        pausing.on_end_acks(path.now, 0, false, None);
        let later = path.now + Duration::from_secs(60);
        pausing.on_sent(later, 1200, 0);
        pausing.acknowledge(later + RTT, later, SEGMENT, RTT);
        path.cubic
            .acknowledge(path.now + RTT, path.now, SEGMENT, RTT);
        let (one, other) = (pausing.window, path.cubic.window);
        assert!((one - other).abs() < 1.0, "{one} {other}");
    }

    #[test]
    fn persistent_congestion_leaves_two_segments() {
        let mut path = SimulatedPath::new(u32::MAX);
        path.round();
        let (now, before) = (path.now, path.cubic.window);
        path.cubic.on_congestion_event(now, now, true, 1200);
        assert_eq!(path.cubic.window(), 2400);
        assert_eq!(path.cubic.threshold, before * BETA);
    }

    #[test]
    fn a_larger_segment_makes_a_new_window_larger() {
        let mut cubic = CubicWindow::new(1200);
        cubic.on_mtu_update(1455);
        assert_eq!(cubic.window(), 14_550);
        cubic.on_mtu_update(9000);
        assert_eq!(cubic.window(), 18_000);
    }
}
