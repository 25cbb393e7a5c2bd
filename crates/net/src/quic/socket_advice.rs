//! What the system is asked for a UDP socket, and what the operator is told where it refuses.

use std::sync::atomic::{AtomicBool, Ordering};

use base::ErrnoText;
use host::engine::ListenerSpec;
use host::error_log::{LogLevel, Logger};
use rt::net::{BatchedUdpSocket, DatagramSteering, steer_datagrams};

use super::connection_ids::{ID_LENGTH, IdCipher};

/// How much a socket should hold of what has arrived or is to leave, in bytes: 2 MB are 14 ms of a gigabit link.
const BUFFER: usize = 2 << 20;

/// Each advice is given once.
static BUFFERS_TOLD: AtomicBool = AtomicBool::new(false);
static STEERING_TOLD: AtomicBool = AtomicBool::new(false);

/// Sets the buffers of a socket, unless `listen` says how large they are.
pub(super) fn prepare_socket(socket: &BatchedUdpSocket, spec: &ListenerSpec, log: &Logger) {
    if spec.options.receive_buffer.is_some() || spec.options.send_buffer.is_some() {
        return;
    }
    // An error: the socket works as it is.
    let Ok(size) = socket.grow_buffers(BUFFER) else {
        return;
    };
    if size < BUFFER && !BUFFERS_TOLD.swap(true, Ordering::Relaxed) {
        let (address, kilobytes) = (&spec.address, size / 1024);
        log.log_plain(
            LogLevel::Notice,
            format_args!(
                "the system gives UDP sockets such as {address} buffers of {kilobytes}k only, and bursts of many \
                 clients may be lost; \"sysctl net.core.rmem_max={BUFFER} net.core.wmem_max={BUFFER}\" allows more"
            ),
        );
    }
}

/// Has the kernel choose among the sockets of the address by connection id.
pub(super) fn steer(socket: &BatchedUdpSocket, ids: &IdCipher, spec: &ListenerSpec, log: &Logger) {
    let steering = DatagramSteering {
        id_length: ID_LENGTH as u8,
        factor: ids.steering.factor,
        summand: ids.steering.summand,
    };
    if let Err(error) = steer_datagrams(socket, steering)
        && !STEERING_TOLD.swap(true, Ordering::Relaxed)
    {
        let (address, reason) = (&spec.address, ErrnoText(&error));
        log.log_plain(
            LogLevel::Notice,
            format_args!(
                "setsockopt(SO_ATTACH_REUSEPORT_CBPF) {address} failed{reason}: datagrams of moved clients take a detour"
            ),
        );
    }
}
