# certbot's nginx plugin against Pebble: obtain, install, redirect, enhance, renew, expand, delete.
tools=$1
printf '127.0.0.1 localhost box\n' >/etc/hosts
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -keyout acme.key -out acme.pem 2>/dev/null
cat >pebble.json <<CONF
{ "pebble": { "listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
    "certificate": "$PWD/acme.pem", "privateKey": "$PWD/acme.key", "httpPort": 80, "tlsPort": 443 } }
CONF
"$tools/pebble-challtestsrv" -defaultIPv4 127.0.0.1 -defaultIPv6 '' -http01 '' -https01 '' -tlsalpn01 '' -doh '' -dnsserver 127.0.0.1:8053 -management 127.0.0.1:8055 >dns.log 2>&1 &
dns=$!
PEBBLE_VA_NOSLEEP=1 PEBBLE_WFE_NONCEREJECT=0 PEBBLE_AUTHZREUSE=0 "$tools/pebble" -config pebble.json -dnsserver 127.0.0.1:8053 >pebble.log 2>&1 &
pebble=$!
for _ in $(seq 200); do curl -s -o /dev/null --cacert acme.pem https://localhost:14000/dir && break; sleep 0.05; done
cat >/etc/nginx/sites-available/one <<'CONF'
server {
    listen 80;
    server_name one.test www.one.test;
    root /var/www/html;
    location / { try_files $uri $uri/ =404; }
    location ~ \.php$ { return 403; }
}
CONF
cat >/etc/nginx/sites-available/two <<'CONF'
# A proxy, and a server that catches everything.
upstream app { server 127.0.0.1:9; }
server { listen 80; server_name two.test;
    location / { return 200 "two\n"; }
    location /app { proxy_pass http://app; }
}
CONF
ln -s ../sites-available/one ../sites-available/two /etc/nginx/sites-enabled/
nginx
with() {
    name=$1; shift
    REQUESTS_CA_BUNDLE=$PWD/acme.pem certbot "$@" --server https://localhost:14000/dir --non-interactive --agree-tos -m a@one.test \
        --no-eff-email >"certbot.out" 2>&1
    echo "certbot $name: $?"
    grep -E -i 'error|could not|failed|deployed|redirect|successfully|congratul' certbot.out | sed 's/ [0-9-]* *[0-9:]*$//' | sort -u
    cat certbot.out >&2
}
visit() {
    for url in http://one.test/ https://one.test/ https://www.one.test/x.php http://two.test/ https://two.test/ http://two.test/app; do
        echo "$url: $(curl -s -k -o /dev/null -w '%{http_code} %{redirect_url} %header{strict-transport-security}' --resolve '*:80:127.0.0.1' --resolve '*:443:127.0.0.1' "$url")"
    done
}
names() { openssl s_client -connect 127.0.0.1:443 -servername "$1" </dev/null 2>/dev/null | openssl x509 -noout -ext subjectAltName 2>/dev/null | tail -n 1 | tr -s ' '; }
serial() { openssl s_client -connect 127.0.0.1:443 -servername "$1" </dev/null 2>/dev/null | openssl x509 -noout -serial 2>/dev/null; }
old=$(cat /run/nginx.pid)
with 'run, with a redirect' run --nginx -d one.test -d www.one.test --redirect
visit
echo "certificate: $(names one.test)"
with 'run, without' run --nginx -d two.test --no-redirect
visit
echo "certificate: $(names two.test)"
with 'enhance' enhance --nginx --cert-name one.test --hsts --redirect
visit
first=$(serial one.test)
with renew renew --force-renewal
for _ in $(seq 100); do [ "$(serial one.test)" != "$first" ] && break; sleep 0.05; done
[ "$(serial one.test)" != "$first" ] && echo 'another certificate is served'
with 'certonly for another name' certonly --nginx -d three.test
with 'certonly by webroot' certonly --webroot -w /var/www/html -d www.one.test
with 'delete' delete --cert-name three.test
with 'expand' run --nginx --cert-name two.test -d two.test -d second.two.test --redirect --expand
visit
certbot certificates 2>/dev/null | grep -E 'Certificate Name|Domains' | sort
nginx -t 2>&1 | grep -v -E 'warn|^ |^$|[|^]'
[ "$(cat /run/nginx.pid)" = "$old" ] && echo 'the same process'
cat /etc/nginx/sites-available/one /etc/nginx/sites-available/two
nginx -s quit 2>/dev/null
kill $pebble $dns
true
