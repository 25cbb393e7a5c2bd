//! Applications that speak HTTP, or one of its gateways.

use super::client;
use crate::case::Case;
use crate::needs::Need;

const CURL: Need = Need::Debian("/usr/bin/curl", "curl");

/// PHP-FPM and MariaDB behind FastCGI: installed, logged in to, written for, by forms, REST and XML-RPC.
pub(super) fn wordpress() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/share/wordpress/index.php", "wordpress"),
            Need::Debian(
                "/usr/share/doc/wordpress-theme-twentytwentythree",
                "wordpress-theme-twentytwentythree",
            ),
            Need::Debian("/usr/sbin/mariadbd", "mariadb-server"),
            Need::Debian("/usr/share/doc/php-fpm", "php-fpm"),
            Need::Debian("/usr/share/doc/php-mysql", "php-mysql"),
            Need::Debian("/usr/share/doc/php-xml", "php-xml"),
        ],
        files: vec![
            client!("say.py"),
            client!("wordpress.sh"),
            client!("wordpress_client.py"),
            (
                "wp-config.php",
                "<?php
define('DB_NAME', 'site'); define('DB_USER', 'root'); define('DB_PASSWORD', '');
define('DB_HOST', 'localhost:%%DIR%%/db.sock'); define('DB_CHARSET', 'utf8mb4'); define('DB_COLLATE', '');
foreach (['AUTH_KEY', 'SECURE_AUTH_KEY', 'LOGGED_IN_KEY', 'NONCE_KEY', 'AUTH_SALT', 'SECURE_AUTH_SALT', 'LOGGED_IN_SALT',
    'NONCE_SALT'] as $name) define($name, str_repeat($name, 4));
define('WP_HOME', 'http://127.0.0.1:%%PORT%%'); define('WP_SITEURL', WP_HOME);
define('DISABLE_WP_CRON', true); define('AUTOMATIC_UPDATER_DISABLED', true); define('WP_HTTP_BLOCK_EXTERNAL', true);
define('WP_DEBUG', false); $table_prefix = 'wp_';
if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
",
            ),
            (
                "fpm.conf",
                "[global]
error_log = %%DIR%%/fpm.log
daemonize = no
[site]
user = %%USER%%
listen = %%DIR%%/php.sock
pm = static
pm.max_children = 3
clear_env = yes
php_admin_value[upload_max_filesize] = 64M
php_admin_value[post_max_size] = 64M
php_admin_value[sendmail_path] = /bin/true
php_admin_value[opcache.enable] = 1
",
            ),
        ],
        prepare: vec!["sh wordpress.sh %%DIR%% %%USER%%"],
        applications: vec![
            (
                "mariadbd --no-defaults --user=%%USER%% --datadir=%%DIR%%/db --socket=%%DIR%%/db.sock --skip-networking \
                 --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=32M",
                "db.sock",
            ),
            (
                "sh -c 'mariadb -u root -S %%DIR%%/db.sock -e \"create database site\"; exec $(ls /usr/sbin/php-fpm* | tail -1) -R -F -y fpm.conf'",
                "php.sock",
            ),
        ],
        configuration: "
events { }
http {
    include /etc/nginx/mime.types;
    access_log off;
    client_max_body_size 64m;
    server {
        listen 127.0.0.1:%%PORT%%;
        root %%DIR%%/site;
        index index.php;
        location / { try_files $uri $uri/ /index.php?$args; }
        location ~ \\.php$ {
            try_files $uri =404;
            fastcgi_pass unix:%%DIR%%/php.sock;
            fastcgi_index index.php;
            include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
            fastcgi_param HTTP_HOST $http_host;
            fastcgi_read_timeout 60s;
        }
    }
}
",
        client: "python3 wordpress_client.py %%PORT%%",
        ..Case::new(
            "wordpress",
            "WordPress (PHP-FPM, MariaDB): install, log in, post, upload, REST, XML-RPC",
        )
    }
}

const DJANGO_CLIENT: &str = "python3 django_client.py %%PORT%%";

/// What Django's cases share; by which protocol they are asked is the configuration's matter.
fn django_with(name: &'static str, what: &'static str) -> Case {
    Case {
        differs: vec![
            (
                "status: 204 ",
                "a 204 has no Content-Length (RFC 9110, section 8.6)",
            ),
            (
                "status: 304 ",
                "a 304 has no Content-Length that is not that of the 200 (RFC 9110, section 8.6)",
            ),
        ],
        needs: vec![
            Need::Python("django", "django"),
            Need::Python("gunicorn", "gunicorn"),
        ],
        files: vec![
            client!("say.py"),
            client!("django_app.py"),
            client!("django_client.py"),
        ],
        prepare: vec!["seq 1 200000 > large"],
        client: DJANGO_CLIENT,
        ..Case::new(name, what)
    }
}

/// Gunicorn behind HTTP.
pub(super) fn django() -> Case {
    Case {
        applications: vec![(
            "%%PYTHON%% -m gunicorn --workers 2 --bind 127.0.0.1:%%APP%% django_app:application",
            "%%APP%%",
        )],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 64m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%APP%%;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto https;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_redirect off;
        }
        location /files/ { internal; alias %%DIR%%/; }
    }
}
",
        ..django_with(
            "django",
            "Django (gunicorn) by proxy_pass: forms, sessions, uploads, streams, X-Accel-Redirect",
        )
    }
}

/// uWSGI behind its own protocol.
pub(super) fn uwsgi() -> Case {
    let mut case = Case {
        applications: vec![(
            "uwsgi --plugin python3 --socket %%DIR%%/app.sock --module django_app:application --master --processes 2 \
             --pythonpath %%DIR%% --pythonpath %%SITE%% --buffer-size 16384 --need-app --die-on-term",
            "app.sock",
        )],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 64m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            uwsgi_pass unix:%%DIR%%/app.sock;
            include /etc/nginx/uwsgi_params;
        }
        location /files/ { internal; alias %%DIR%%/; }
    }
}
",
        ..django_with("uwsgi", "the same project of Django (uWSGI) by uwsgi_pass")
    };
    case.needs.push(Need::Debian("/usr/bin/uwsgi", "uwsgi"));
    case.needs.push(Need::Debian(
        "/usr/lib/uwsgi/plugins/python3_plugin.so",
        "uwsgi-plugin-python3",
    ));
    case
}

/// Polling, WebSocket, and the change from one to the other.
pub(super) fn socketio() -> Case {
    Case {
        needs: vec![Need::Node("socket.io"), Need::Node("socket.io-client")],
        files: vec![client!("socketio_server.js"), client!("socketio_client.js")],
        applications: vec![("node socketio_server.js %%APP%%", "%%APP%%")],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 64m;
    map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%APP%%;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }
    }
}
",
        client: "node socketio_client.js %%PORT%%",
        ..Case::new(
            "socket.io",
            "socket.io: polling, WebSocket, upgrades, rooms, binary content",
        )
    }
}

/// git's own program behind FastCGI.
pub(super) fn git() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/bin/git", "git"),
            Need::Debian("/usr/sbin/fcgiwrap", "fcgiwrap"),
            Need::Debian("/usr/bin/openssl", "openssl"),
        ],
        files: vec![
            client!("git_client.sh"),
            // `user` and `word`.
            ("passwords", "user:{PLAIN}word\n"),
        ],
        prepare: vec![
            "git init -q --bare repositories/repo.git",
            "git -C repositories/repo.git config http.receivepack true",
        ],
        applications: vec![(
            "env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
             fcgiwrap -c 2 -s unix:%%DIR%%/cgi.sock",
            "cgi.sock",
        )],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 0;
    fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend;
    fastcgi_param GIT_HTTP_EXPORT_ALL '';
    fastcgi_param GIT_PROJECT_ROOT %%DIR%%/repositories;
    fastcgi_param PATH_INFO $path;
    fastcgi_param REMOTE_USER $remote_user;
    include /etc/nginx/fastcgi_params;
    server {
        listen 127.0.0.1:%%PORT%%;
        location ~ ^/git(?<path>/.*)$ { fastcgi_pass unix:%%DIR%%/cgi.sock; }
        location ~ ^/locked(?<path>/.*)$ {
            auth_basic repositories;
            auth_basic_user_file %%DIR%%/passwords;
            fastcgi_pass unix:%%DIR%%/cgi.sock;
        }
    }
}
",
        client: "sh git_client.sh %%PORT%%",
        ..Case::new(
            "git",
            "git over fcgiwrap: clone, push in chunks, shallow, tags, passwords, versions 0 to 2",
        )
    }
}

/// A storage of objects, by the client of its inventor.
pub(super) fn s3() -> Case {
    Case {
        needs: vec![
            Need::Python("moto.server", "moto[server]"),
            Need::Python("boto3", "boto3"),
        ],
        files: vec![client!("say.py"), client!("s3_client.py")],
        applications: vec![(
            "env MOTO_S3_CUSTOM_ENDPOINTS=http://127.0.0.1:%%PORT%% %%PYTHON%% -m moto.server -H 127.0.0.1 -p %%APP%%",
            "%%APP%%",
        )],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 0;
    upstream storage { server 127.0.0.1:%%APP%%; keepalive 8; }
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://storage;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_set_header Host $http_host;
        }
        location /box/large {
            proxy_pass http://storage;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
            proxy_buffering off;
        }
    }
}
",
        client: "%%PYTHON%% s3_client.py %%PORT%%",
        ..Case::new(
            "s3",
            "S3 (moto, boto3): multipart, ranges, signed URLs, Expect, checksums in trailers",
        )
    }
}

/// Uploads as a registry of images has them, events, long polls.
pub(super) fn registry() -> Case {
    Case {
        needs: vec![CURL],
        files: vec![
            client!("say.py"),
            client!("registry.py"),
            client!("registry_client.py"),
        ],
        applications: vec![("python3 registry.py %%APP%%", "%%APP%%")],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 0;
    server {
        listen 127.0.0.1:%%PORT%%;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-Proto $scheme;
        location / { proxy_pass http://127.0.0.1:%%APP%%; }
        location /v2/ {
            proxy_pass http://127.0.0.1:%%APP%%;
            proxy_request_buffering off;
        }
        location /small/ { client_max_body_size 10k; proxy_pass http://127.0.0.1:%%APP%%; }
    }
}
",
        client: "python3 registry_client.py %%PORT%%",
        ..Case::new(
            "registry",
            "uploads of a registry in chunks and pieces, curl with Expect, events, long polls",
        )
    }
}

/// The tests of the WebDAV community, as far as both servers speak WebDAV.
pub(super) fn webdav() -> Case {
    Case {
        needs: vec![Need::Debian("/usr/bin/litmus", "litmus"), CURL],
        files: vec![(
            "client.sh",
            "# Which of litmus's tests pass; those of properties and locks are for modules that neither has.
LITMUS=/usr/lib/litmus/libexec; [ -d \"$LITMUS\" ] || LITMUS=$(dirname \"$(find /usr/lib* -name copymove -path '*litmus*' | head -1)\")
for test in basic copymove http; do
    \"$LITMUS/$test\" \"http://127.0.0.1:$1/dav/\" 2>/dev/null | tr '\\r' '\\n' | grep -E '^ *[0-9]+\\.|^<- summary' \\
        | sed -e 's/\\.\\.\\.*/:/' -e 's/of [0-9]* tests run://' -e \"s/^ */$test /\" | grep -v -E ':$'
done
put() { printf '%s: ' \"$1\"; shift; curl -s -o /dev/null -w '%{http_code}\\n' \"$@\"; }
base=http://127.0.0.1:$1/dav
put put -T client.sh \"$base/a.txt\"
put 'put again' -T client.sh \"$base/a.txt\"
put 'put in chunks' -H 'Transfer-Encoding: chunked' -T client.sh \"$base/b.txt\"
put 'made on the way' -T client.sh \"$base/x/y/z.txt\"
put 'part of one' -H 'Content-Range: bytes 0-1/5' -T client.sh \"$base/a.txt\"
put folder -X MKCOL \"$base/folder/\"
put 'folder again' -X MKCOL \"$base/folder/\"
put 'folder without slash' -X MKCOL \"$base/other\"
put copy -X COPY -H \"Destination: $base/c.txt\" \"$base/a.txt\"
put 'copy onto' -X COPY -H \"Destination: $base/c.txt\" -H 'Overwrite: F' \"$base/a.txt\"
put move -X MOVE -H \"Destination: $base/d%20d.txt\" \"$base/c.txt\"
put 'move away' -X MOVE -H 'Destination: http://other.example/dav/e' \"$base/a.txt\"
put 'move folder' -X MOVE -H \"Destination: $base/moved/\" \"$base/folder/\"
put 'delete folder' -X DELETE \"$base/moved/\"
put 'delete folder without slash' -X DELETE \"$base/x\"
put delete -X DELETE \"$base/a.txt\"
put 'delete again' -X DELETE \"$base/a.txt\"
put get \"$base/d%20d.txt\"
",
        )],
        prepare: vec!["mkdir -p html/dav tmp"],
        configuration: "
events { }
http {
    access_log off;
    client_body_temp_path %%DIR%%/tmp;
    server {
        listen 127.0.0.1:%%PORT%%;
        root %%DIR%%/html;
        location /dav/ {
            dav_methods PUT DELETE MKCOL COPY MOVE;
            create_full_put_path on;
            dav_access user:rw group:rw all:r;
            client_max_body_size 0;
        }
    }
}
",
        client: "sh client.sh %%PORT%%",
        ..Case::new("webdav", "litmus (basic, copymove, http) and curl on the dav module")
    }
}

/// HTTP/3 by a browser. Needs an nginx that has it.
pub(super) fn http3_browser() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/bin/openssl", "openssl"),
            Need::Debian("/usr/bin/chromium", "chromium"),
        ],
        files: vec![
            client!("http3_chromium.sh"),
            (
                "page.html",
                "<!doctype html><body><script>
const ask = (path, init) => fetch(path, init).then(r => r.arrayBuffer().then(b => `${r.status} ${b.byteLength} ${r.headers.get('x-seen')}`));
const say = text => document.body.insertAdjacentHTML('beforeend', `<p>${text}</p>`);
(async () => {
  say(await ask('/seen'));
  say((await Promise.all([...Array(50).keys()].map(n => ask('/big?' + n)))).filter(a => a.startsWith('200 500000 ')).length + ' at once');
  say(await ask('/echo', { method: 'POST', body: new Uint8Array(300000) }));
})().catch(say);
</script></body>
",
            ),
        ],
        prepare: vec![
            "openssl req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.pem -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost",
            "sh -c 'mkdir -p html && mv page.html html && yes content | head -c 500000 > html/big'",
        ],
        configuration: "
events { }
http {
    access_log off;
    types { text/html html; }
    client_max_body_size 0;
    server {
        listen 127.0.0.1:%%PORT%% quic;
        ssl_certificate %%DIR%%/rsa.pem;
        ssl_certificate_key %%DIR%%/rsa.key;
        root %%DIR%%/html;
        location /seen { add_header X-Seen '$server_protocol|$http3'; return 200 seen; }
        location /echo { add_header X-Seen $content_length; proxy_pass http://127.0.0.1:%%PORT2%%; }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        location / { return 200 $content_length; }
    }
}
",
        client: "sh http3_chromium.sh %%PORT%%",
        ..Case::new(
            "http3-browser",
            "Chromium: a page, fifty requests at once, an upload",
        )
    }
}

/// HTTP/3 by two clients that share nothing. Needs an nginx that has it.
pub(super) fn http3() -> Case {
    Case {
        needs: vec![
            Need::Debian("/usr/bin/openssl", "openssl"),
            Need::Python("aioquic", "aioquic"),
            Need::Debian("/usr/bin/go", "golang"),
        ],
        files: vec![
            client!("say.py"),
            client!("http3_client.py"),
            client!("http3_client.go"),
            (
                "go.mod",
                "module suites/http3\n\ngo 1.24\n\nrequire github.com/quic-go/quic-go v0.55.0\n",
            ),
        ],
        prepare: vec![
            "openssl req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.pem -days 30 -subj /CN=localhost",
            "mkdir -p html",
            "sh -c 'yes content | head -c 4000 > html/index.html; yes \"large content\" | head -c 5000000 > html/big'",
            "go mod tidy",
            "go build -o http3_client .",
        ],
        configuration: "
events { }
http {
    access_log off;
    client_max_body_size 0;
    server {
        listen 127.0.0.1:%%PORT%% quic;
        ssl_certificate %%DIR%%/rsa.pem;
        ssl_certificate_key %%DIR%%/rsa.key;
        root %%DIR%%/html;
        location /seen { add_header X-Seen '$request|$server_protocol|$http3|$http_cookie'; return 200 seen; }
        location /echo { proxy_pass http://127.0.0.1:%%PORT2%%; }
        location /little { client_max_body_size 1000; proxy_pass http://127.0.0.1:%%PORT2%%; }
        location /trailers { add_trailer X-Sum $request_method; return 200 trailers; }
        location /resumed { add_header X-Resumed $ssl_session_reused; return 200 again; }
    }
    server {
        listen 127.0.0.1:%%PORT2%% quic;
        ssl_certificate %%DIR%%/rsa.pem;
        ssl_certificate_key %%DIR%%/rsa.key;
        keepalive_requests 3;
        location / { return 200 last; }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        location / {
            client_body_in_single_buffer on;
            client_body_buffer_size 4m;
            proxy_pass http://127.0.0.1:%%PORT2%%/mirror;
        }
        location /mirror { return 200 $content_length$http_transfer_encoding; }
    }
}
",
        client: "sh -c '%%PYTHON%% http3_client.py %%PORT%% %%PORT2%% && ./http3_client %%PORT%%'",
        ..Case::new(
            "http3",
            "aioquic and quic-go: requests at once, content both ways, a dynamic table, resumption, GOAWAY",
        )
    }
}
