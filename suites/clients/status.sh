# What reads stub_status: munin, collectd, Prometheus. All are asked at the same point of the same traffic.
cat >/etc/nginx/sites-enabled/default <<'CONF'
server { listen 80 default_server; root /var/www/html; location /nginx_status { stub_status; access_log off; allow 127.0.0.1; deny all; } }
CONF
nginx
for _ in 1 2 3 4 5 6 7 8 9 10; do curl -s -o /dev/null http://127.0.0.1/; done
curl -s http://127.0.0.1/ http://127.0.0.1/none http://127.0.0.1/ >/dev/null
echo 'as it is:'
curl -s -i http://127.0.0.1/nginx_status | grep -v -i -E '^(server|date|etag|last-modified):' | tr -d '\r'
for plugin in nginx_status nginx_request; do
    for mode in autoconf config ''; do
        echo "munin $plugin $mode:"
        MUNIN_LIBDIR=/usr/share/munin port=80 /usr/share/munin/plugins/$plugin $mode 2>&1
    done
done
mkdir -p csv
cat >collectd.conf <<CONF
Interval 1
FQDNLookup false
BaseDir "$PWD"
PIDFile "$PWD/collectd.pid"
TypesDB "/usr/share/collectd/types.db"
LoadPlugin csv
LoadPlugin nginx
<Plugin csv>
DataDir "$PWD/csv"
StoreRates false
</Plugin>
<Plugin nginx>
URL "http://127.0.0.1/nginx_status"
</Plugin>
CONF
collectd -C collectd.conf -f >collectd.log 2>&1 &
collector=$!
for _ in $(seq 200); do [ "$(find csv -type f | wc -l)" -ge 7 ] && break; sleep 0.05; done
kill $collector; wait $collector
for file in $(find csv -type f | sort); do echo "collectd $(basename "$file" | cut -d- -f1-2 | sed 's/-20[0-9]*$//'): $(sed -n 2p "$file" | cut -d, -f2)"; done
prometheus-nginx-exporter -nginx.scrape-uri http://127.0.0.1/nginx_status -web.listen-address 127.0.0.1:9113 >exporter.log 2>&1 &
exporter=$!
for _ in $(seq 100); do curl -s http://127.0.0.1:9113/metrics >metrics && break; sleep 0.05; done
echo 'prometheus:'
grep -E '^nginx_' metrics | grep -v exporter_build
nginx -s quit
for _ in $(seq 100); do [ -e /run/nginx.pid ] || break; sleep 0.05; done
curl -s http://127.0.0.1:9113/metrics | grep -E '^nginx_up'
kill $exporter
echo "munin without a server: $(/usr/share/munin/plugins/nginx_status autoconf 2>&1)"
