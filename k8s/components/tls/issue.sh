#!/usr/bin/env bash
# A certificate for this pod, signed with the fleet's authority. In the pod, and not by cert-manager,
# since peers are reached by IP address, and no address is known before the pod runs.
#   AUTHORITY  folder with tls.crt and tls.key of the authority (only this container has it)
#   OUTPUT     folder that Ray's container reads: ca.crt, tls.crt, tls.key
#   POD_IP     the pod's address
#   ROLE       head, target or draft
#   FQ_RAY_IP  the name of the head's service; the operator sets it in every init container
set -euo pipefail
umask 027

request="$(mktemp)"
extensions="$(mktemp)"
names="IP:$POD_IP,IP:127.0.0.1,DNS:localhost"
if [[ "$ROLE" == head ]]; then # no other pod may pass for it
    names+=",DNS:$FQ_RAY_IP,DNS:${FQ_RAY_IP%%.*}"
fi
cat >"$extensions" <<EXTENSIONS
subjectAltName=$names
extendedKeyUsage=serverAuth,clientAuth
EXTENSIONS

openssl ecparam -name prime256v1 -genkey -noout -out "$OUTPUT/tls.key"
openssl req -new -key "$OUTPUT/tls.key" -subj "/CN=$POD_IP" -out "$request"
openssl x509 -req -in "$request" -days "${DAYS:-1825}" -sha256 -extfile "$extensions" \
    -CA "$AUTHORITY/tls.crt" -CAkey "$AUTHORITY/tls.key" -set_serial "0x$(openssl rand -hex 16)" \
    -out "$OUTPUT/tls.crt"
cp "$AUTHORITY/tls.crt" "$OUTPUT/ca.crt"
