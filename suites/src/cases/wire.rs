//! What is no page: gRPC, and databases and names by `stream`.

use super::client;
use crate::case::Case;
use crate::needs::Need;

const STREAM: Need = Need::Debian(
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "libnginx-mod-stream",
);

/// All four kinds of calls, deadlines, errors, metadata.
pub(super) fn grpc() -> Case {
    Case {
        needs: vec![
            Need::Python("grpc", "grpcio"),
            Need::Python("grpc_health.v1.health_pb2_grpc", "grpcio-health-checking"),
        ],
        files: vec![
            client!("say.py"),
            client!("grpc_server.py"),
            client!("grpc_client.py"),
        ],
        applications: vec![("%%PYTHON%% grpc_server.py %%APP%%", "%%APP%%")],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 0;
    upstream words { server 127.0.0.1:%%APP%%; keepalive 8; }
    server {
        listen 127.0.0.1:%%PORT%% http2;
        location / { grpc_pass grpc://words; grpc_read_timeout 60s; }
        location = /suite.Words/Slow { grpc_pass grpc://words; grpc_read_timeout 1s; }
        location /refused.Here/ { return 403; }
        location /gone.Away/ { grpc_pass grpc://127.0.0.1:%%APP2%%; }
    }
}
",
        client: "%%PYTHON%% grpc_client.py %%PORT%%",
        ..Case::new(
            "grpc",
            "grpcio: unary, streams both ways, deadlines, errors, metadata, health",
        )
    }
}

/// Commands, pipelines, subscriptions.
pub(super) fn redis() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/bin/redis-server", "redis-server"),
            STREAM,
            Need::Python("redis", "redis"),
        ],
        files: vec![client!("say.py"), client!("redis_client.py")],
        applications: vec![(
            "redis-server --port %%APP%% --bind 127.0.0.1 --save '' --dir %%DIR%%",
            "%%APP%%",
        )],
        configuration: "
events { }
stream {
    upstream store { server 127.0.0.1:%%APP%%; }
    server { listen 127.0.0.1:%%PORT%%; proxy_pass store; }
}
",
        client: "%%PYTHON%% redis_client.py %%PORT%%",
        ..Case::new(
            "redis",
            "Redis by stream: pipelines, subscriptions, transactions, large values",
        )
    }
}

/// Where the server speaks first.
pub(super) fn mysql() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/sbin/mariadbd", "mariadb-server"),
            Need::Python("pymysql", "pymysql"),
            STREAM,
        ],
        files: vec![
            client!("say.py"),
            client!("mysql_client.py"),
            (
                "begin.sql",
                "create database d;
create user 'user'@'%' identified by 'word';
grant all on *.* to 'user'@'%';
",
            ),
        ],
        prepare: vec![
            "mariadb-install-db --no-defaults --user=%%USER%% --datadir=%%DIR%%/db --auth-root-authentication-method=normal --skip-test-db",
        ],
        applications: vec![(
            "mariadbd --no-defaults --user=%%USER%% --datadir=%%DIR%%/db --socket=%%DIR%%/db.sock --bind-address=127.0.0.1 \
             --port=%%APP%% --init-file=%%DIR%%/begin.sql --local-infile=1 --max-allowed-packet=64M --innodb-buffer-pool-size=64M \
             --innodb-flush-log-at-trx-commit=0 --skip-name-resolve",
            "%%APP%%",
        )],
        configuration: "
events { }
stream {
    server { listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:%%APP%%; }
}
",
        client: "%%PYTHON%% mysql_client.py %%PORT%%",
        ..Case::new(
            "mysql",
            "MariaDB by stream: large rows, errors, connections that are killed",
        )
    }
}

/// UDP and TCP at one port.
pub(super) fn dns() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/sbin/dnsmasq", "dnsmasq-base"),
            Need::Debian("/usr/bin/dig", "dnsutils"),
            STREAM,
        ],
        files: vec![client!("dns_client.sh")],
        applications: vec![(
            "dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --port=%%APP%% --listen-address=127.0.0.1 \
             --bind-interfaces --user=%%USER%% --pid-file= --local=/example/ --host-record=one.example,192.0.2.1,2001:db8::1 \
             --host-record=two.example,192.0.2.2 --txt-record=long.example,$(printf 'a%.0s' $(seq 1 250)),$(printf 'b%.0s' $(seq 1 250)),$(printf 'c%.0s' $(seq 1 250)),$(printf 'd%.0s' $(seq 1 250)),$(printf 'e%.0s' $(seq 1 250))",
            "%%APP%%",
        )],
        configuration: "
events { }
stream {
    server { listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:%%APP%%; }
    server { listen 127.0.0.1:%%PORT%% udp; proxy_pass 127.0.0.1:%%APP%%; proxy_responses 1; proxy_timeout 5s; }
}
",
        client: "sh dns_client.sh %%PORT%%",
        ..Case::new("dns", "dig by stream, over UDP and TCP: truncation, EDNS, many at once")
    }
}
