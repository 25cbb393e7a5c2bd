# nginx-prometheus-exporter in both of its modes: at stub_status, and at the API, which nginx without a subscription does not have.
cat >/etc/nginx/nginx.conf <<'CONF'
events {}
http {
    upstream back { zone back 64k; server 127.0.0.1:8001; server 127.0.0.1:8002 down; }
    server {
        listen 80;
        location / { proxy_pass http://back; }
        location = /stub { stub_status; }
        include api.conf;
    }
    server { listen 127.0.0.1:8001; location / { return 200 ok; } location /none { return 404; } }
}
CONF
: >/etc/nginx/api.conf
nginx
for _ in 1 2 3 4 5; do curl -s -o /dev/null http://127.0.0.1/; done
exporter() {
    prometheus-nginx-exporter "$@" -web.listen-address 127.0.0.1:9113 >exporter.log 2>&1 &
    running=$!
    for _ in $(seq 100); do curl -s http://127.0.0.1:9113/metrics >metrics && break; sleep 0.05; done
}
exporter -nginx.scrape-uri http://127.0.0.1/stub
echo 'stub_status:'
grep -E '^nginx_up ' metrics
# What is open at this moment is a matter of moments.
grep -o -E '^nginx_(connections|http)_[a-z_]*' metrics
kill $running
echo 'location /api { api; status_zone api; } status_zone front;' >/etc/nginx/api.conf
if ! nginx -t >said 2>&1; then
    echo "api: $(grep -o 'unknown directive "[a-z_]*"' said | head -1)"
    exit 0
fi
nginx -s reload
for _ in $(seq 100); do curl -s -f -o /dev/null http://127.0.0.1/api/9/nginx && break; sleep 0.05; done
for _ in 1 2 3; do curl -s -o /dev/null http://127.0.0.1/; done
curl -s -o /dev/null http://127.0.0.1/none
exporter -nginx.plus -nginx.scrape-uri http://127.0.0.1/api
cp metrics api.metrics
missing=0
while read -r line; do
    grep -q -F -x -e "$line" api.metrics || { echo "missing: $line"; missing=1; }
done <<'LINES'
nginxplus_up 1
nginxplus_connections_dropped 0
nginxplus_http_requests_current 1
nginxplus_server_zone_responses{code="4xx",server_zone="front"} 1
nginxplus_server_zone_responses_codes{code="404",server_zone="front"} 1
nginxplus_location_zone_discarded{location_zone="api"} 0
nginxplus_upstream_server_state{server="127.0.0.1:8001",upstream="back"} 1
nginxplus_upstream_server_state{server="127.0.0.1:8002",upstream="back"} 3
nginxplus_upstream_server_requests{server="127.0.0.1:8001",upstream="back"} 9
nginxplus_upstream_server_responses{code="2xx",server="127.0.0.1:8001",upstream="back"} 3
nginxplus_upstream_server_responses{code="4xx",server="127.0.0.1:8001",upstream="back"} 1
nginxplus_upstream_server_fails{server="127.0.0.1:8001",upstream="back"} 0
LINES
kill $running
[ $missing = 0 ] || { grep -E '^nginx' api.metrics; exit 1; }
echo "api: $(grep -c -E '^nginxplus_' api.metrics) samples"
