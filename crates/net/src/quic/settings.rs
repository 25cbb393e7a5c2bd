//! What the configuration says of QUIC connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::congestion::BbrConfig;
use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::cubic::CubicFactory;

/// How many unidirectional streams a client may have open: HTTP/3 needs three (RFC 9114, section 6.2), and others are
/// allowed for extensions. nginx allows as many.
const UNIDIRECTIONAL_STREAMS: u32 = 3;

/// How many windows of a stream all streams of a connection may use together.
const STREAMS_PER_WINDOW: u64 = 4;

/// How much of what was written on a connection waits for the client's acknowledgement or to be sent at most, in bytes: 4 MB
/// fill a path of 300 Mbit/s and 100 ms. Slower ones have less: see `link`.
pub(super) const SEND_WINDOW: u64 = 4 << 20;

/// How much of handshake messages may wait for what is missing before them, in bytes.
const CRYPTO_BUFFER: usize = 32 * 1024;

/// The largest datagram that is tried, in bytes: what Ethernet carries over IPv4.
const LARGEST_DATAGRAM: u16 = 1472;

/// How near the truth the search for the largest one ends, in bytes: with the library's 20 it ends at 1,455, with this it finds
/// 1,472, and 1,446 of the 1,452 of IPv6, for two probes more.
const NEAR_ENOUGH: u16 = 8;

/// How many packets a client may leave unacknowledged that can do so (draft-ietf-quic-ack-frequency), and for how long. Each
/// acknowledgement lets as many packets leave as it names: two at a time, as RFC 9000 has it, cost a system call each
/// on either side. Chromium acknowledges every tenth by itself. The time is short, so that a window of fewer packets waits little.
const UNACKNOWLEDGED_PACKETS: u32 = 9;
const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(5);

/// Who decides how much is on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9438: loss is congestion.
    #[default]
    Cubic,
    /// BBR: the path is measured.
    Bbr,
}

/// The settings of a server's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicTransport {
    /// How many requests a client may have open at a time.
    pub max_streams: u64,
    /// How much of a stream a client may send before it is read, in bytes.
    pub stream_window: u64,
    /// After how long without a packet the connection ends.
    pub idle_timeout: Duration,
    /// Who decides how much is on the way.
    pub congestion: CongestionControl,
    /// Whether the system divides large sends into datagrams.
    pub segments: bool,
}

impl QuicTransport {
    /// The library's form.
    pub(super) fn config(&self) -> TransportConfig {
        let mut config = TransportConfig::default();
        let number = |value: u64| VarInt::from_u64(value).unwrap_or(VarInt::MAX);
        config
            .max_concurrent_bidi_streams(number(self.max_streams))
            .max_concurrent_uni_streams(VarInt::from_u32(UNIDIRECTIONAL_STREAMS))
            .stream_receive_window(number(self.stream_window))
            .receive_window(number(
                self.stream_window.saturating_mul(STREAMS_PER_WINDOW),
            ))
            .send_window(SEND_WINDOW)
            .crypto_buffer_size(CRYPTO_BUFFER)
            // No extension here uses DATAGRAM frames.
            .datagram_receive_buffer_size(None)
            // RFC 9000, section 17.4: optional, and one bit less to be observed by.
            .allow_spin(false)
            .enable_segmentation_offload(self.segments)
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok());
        let mut discovery = MtuDiscoveryConfig::default();
        discovery
            .upper_bound(LARGEST_DATAGRAM)
            .minimum_change(NEAR_ENOUGH);
        config.mtu_discovery_config(Some(discovery));
        let mut frequency = AckFrequencyConfig::default();
        frequency
            .ack_eliciting_threshold(VarInt::from_u32(UNACKNOWLEDGED_PACKETS))
            .max_ack_delay(Some(ACKNOWLEDGEMENT_DELAY));
        config.ack_frequency_config(Some(frequency));
        if self.congestion == CongestionControl::Bbr {
            config.congestion_controller_factory(Arc::new(BbrConfig::default()));
        } else {
            config.congestion_controller_factory(Arc::new(CubicFactory));
        }
        config
    }
}
