# Programs that read access logs: GoAccess counts the same visitors, pages, codes, bytes.
mkdir -p /var/www/html/a
head -c 300000 /dev/zero >/var/www/html/large; echo x >/var/www/html/a/b.html
cat >/etc/nginx/sites-enabled/default <<'CONF'
log_format vhost '$host:$server_port $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"';
log_format json escape=json '{"time":"$time_iso8601","host":"$host","status":$status,"uri":"$request_uri","agent":"$http_user_agent","referer":"$http_referer"}';
log_format timed '$remote_addr $host $remote_user [$time_iso8601] "$request" $status $bytes_sent $request_time "$http_user_agent"';
server {
    listen 80 default_server; root /var/www/html;
    access_log /var/log/nginx/access.log;
    access_log /var/log/nginx/vhost.log vhost;
    access_log /var/log/nginx/json.log json;
    location /old { return 301 /a/b.html; }
    location /locked { auth_basic x; auth_basic_user_file /etc/nginx/passwords; }
    location /gone { proxy_pass http://127.0.0.1:9; }
}
CONF
printf 'user:{PLAIN}word\n' >/etc/nginx/passwords
for number in 2 3 4; do ip addr add "127.0.0.$number/8" dev lo 2>/dev/null; done
nginx || exit
ask() { from=$1; shift; curl -s -o /dev/null --interface "127.0.0.$from" "$@"; }
for from in 2 3 4; do
    ask $from http://127.0.0.1/; ask $from http://127.0.0.1/a/b.html -A 'Mozilla/5.0 (X11; Linux x86_64; rv:115.0) Gecko/20100101 Firefox/115.0'
    ask $from http://127.0.0.1/none; ask $from http://127.0.0.1/old -e 'http://from.test/?q=a"b'; ask $from -r 0-99 http://127.0.0.1/large
    ask $from "http://127.0.0.1/a/b.html?x=%22quoted%22&y=é" -A 'agent "in" quotes \ back'; ask $from -I http://127.0.0.1/large
    ask $from -u user:word http://127.0.0.1/locked; ask $from -u 'user:no' http://127.0.0.1/locked; ask $from http://127.0.0.1/gone
    ask $from -d x=y http://127.0.0.1/a/b.html; ask $from -X 'OPTIONS' http://127.0.0.1/; ask $from -A '' http://127.0.0.1/
    ask $from -H 'If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT' http://127.0.0.1/large; ask $from http://127.0.0.1/large
done
nginx -s quit
for _ in $(seq 100); do [ -e /run/nginx.pid ] || break; sleep 0.05; done
cat >summary.py <<'PY'
import json, sys
report = json.load(open(sys.argv[2]))
general = report['general']
for name in ['total_requests', 'valid_requests', 'failed_requests', 'unique_visitors', 'unique_files', 'unique_not_found', 'unique_referrers', 'bandwidth']:
    print(f'{sys.argv[1]} {name}: {general.get(name)}')
for panel in ['requests', 'not_found', 'hosts', 'status_codes', 'browsers', 'os', 'referring_sites', 'remote_user']:
    rows = report.get(panel, {}).get('data', [])
    for row in sorted(rows, key=lambda row: str(row.get('data'))):
        print(f"{sys.argv[1]} {panel}: {row.get('data')} {row.get('method', '')} {row['hits']['count']}")
PY
goaccess /var/log/nginx/access.log --log-format=COMBINED --no-progress --no-global-config -o report.json >/dev/null 2>&1; python3 summary.py combined report.json
goaccess /var/log/nginx/vhost.log --log-format=VCOMBINED --no-progress --no-global-config -o report.json >/dev/null 2>&1; python3 summary.py vhosts report.json
python3 -c "
import json
for line in open('/var/log/nginx/json.log'):
    one = json.loads(line); print('json', one['status'], one['uri'], one['agent'][:20], one['referer'])"
