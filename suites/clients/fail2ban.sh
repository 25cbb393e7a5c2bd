# What fail2ban's filters find in the logs after the same visitors.
apache='$apr1$salt$qJH7fnGNHn2LVRUVM6zJT0'
printf 'user:%s\n' "$apache" >/etc/nginx/passwords
cat >/etc/nginx/sites-enabled/default <<'CONF'
limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
limit_req_zone $server_name zone=per-site:1m rate=1r/m;
server {
    listen 80 default_server;
    listen 443 ssl;
    ssl_certificate /etc/nginx/cert.pem;
    ssl_certificate_key /etc/nginx/key.pem;
    server_name site.test;
    root /var/www/html;
    location /locked/ { auth_basic "members only"; auth_basic_user_file /etc/nginx/passwords; }
    location /slow/ { limit_req zone=one burst=1 nodelay; }
    location /site/ { limit_req zone=per-site; limit_req_log_level warn; }
    location /delayed/ { limit_req zone=one burst=100; }
}
CONF
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=site.test -keyout /etc/nginx/key.pem -out /etc/nginx/cert.pem 2>/dev/null
mkdir -p /var/www/html/slow /var/www/html/site
for name in slow site; do echo x >"/var/www/html/$name/index.html"; done
for number in 2 3 4 5; do ip addr add "127.0.0.$number/8" dev lo 2>/dev/null; done
nginx || cat /var/log/nginx/error.log
get() { from=$1; shift; printf '%s ' "$(curl -s -k -o /dev/null -w '%{http_code}' --interface "127.0.0.$from" "$@")"; }
echo 'visitors:'
get 2 http://127.0.0.1/locked/; get 2 -u user:wrong http://127.0.0.1/locked/; get 2 -u nobody:x http://127.0.0.1/locked/x
get 2 -u 'a "b" c:x' http://127.0.0.1/locked/; get 2 -u user:wrong -e http://from.test/ http://127.0.0.1/locked/
get 2 -u user:wrong -k https://127.0.0.1/locked/; get 2 --http2 -u user:wrong -k https://127.0.0.1/locked/
get 2 -u : http://127.0.0.1/locked/; get 2 -H 'Authorization: Basic !!' http://127.0.0.1/locked/
for _ in 1 2 3 4; do get 3 http://127.0.0.1/slow/; get 3 -k https://127.0.0.1/slow/; get 3 http://127.0.0.1/site/; done
for path in phpmyadmin/x.php wp-login.php admin/ cgi-bin/test w00tw00t.at.ISC.SANS.DFind roundcube/ mysql/ PMA/index.php wordpress/wp-login.php; do
    get 4 "http://127.0.0.1/$path"; get 4 -I "http://127.0.0.1/$path"; get 4 -d x=y "http://127.0.0.1/$path"
done
echo
cat >raw.py <<'PY'
import socket, sys
port, text = int(sys.argv[1]), sys.argv[2].encode().decode('unicode_escape').encode('latin-1')
link = socket.create_connection(('127.0.0.1', port), 5, ('127.0.0.5', 0))
link.sendall(text)
link.settimeout(2)
try: print(link.recv(4096).split(b'\r\n')[0].decode())
except OSError as error: print(type(error).__name__)
PY
raw() { python3 raw.py "${2:-80}" "$1"; }
raw 'GARBAGE\r\n\r\n'; raw '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'; raw 'GET / HTTP/1.1\r\n\r\n'; raw 'GET /../.. HTTP/1.0\r\n\r\n'
raw 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n'; raw 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n'
raw 'GET / HTTP/1.1\r\nHost: a b\r\n\r\n'; raw 'GET / HTTP/1.0\r\n\r\n' 443; raw '\r\n\r\nGET\r\n\r\n'; raw 'get / HTTP/1.0\r\n\r\n'
pkill -QUIT -o -x nginx; for _ in $(seq 100); do pgrep -x nginx >/dev/null || break; sleep 0.05; done
for filter in nginx-http-auth nginx-limit-req nginx-botsearch nginx-bad-request 'nginx-http-auth[mode=aggressive]'; do
    for log in access error; do
        fail2ban-regex --print-all-matched "/var/log/nginx/$log.log" "$filter" >"f2b-$log.out" 2>&1
        echo "$filter on $log.log: $(grep -E '^Failregex: ' "f2b-$log.out")"
        fail2ban-regex -o ip "/var/log/nginx/$log.log" "$filter" 2>/dev/null | sort | uniq -c | tr -s ' '
    done
done
