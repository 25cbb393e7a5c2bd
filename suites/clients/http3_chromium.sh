# Chromium without a screen: a page whose script asks for more, all over HTTP/3.
port=$1
key=$(openssl x509 -in rsa.pem -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64)
timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" --enable-quic \
    --origin-to-force-quic-on=localhost:$port --host-resolver-rules='MAP localhost 127.0.0.1' \
    --ignore-certificate-errors-spki-list="$key" --virtual-time-budget=20000 \
    --dump-dom https://localhost:$port/page.html 2>chromium.log | grep -o '<p>[^$<]*</p>'
