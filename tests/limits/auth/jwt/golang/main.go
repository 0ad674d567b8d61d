// Prints a key set and a token by golang-jwt, as one JSON object. The argument has the claims.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/golang-jwt/jwt"
)

func main() {
	claims := jwt.MapClaims{}
	if err := json.Unmarshal([]byte(os.Args[1]), &claims); err != nil {
		panic(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = "go"
	signed, err := token.SignedString(key)
	if err != nil {
		panic(err)
	}
	coordinate := func(bytes []byte) string { return base64.RawURLEncoding.EncodeToString(bytes) }
	fmt.Printf(
		`{"token": %q, "key": {"kty": "EC", "crv": "P-256", "kid": "go", "x": %q, "y": %q}}`,
		signed,
		coordinate(key.X.FillBytes(make([]byte, 32))),
		coordinate(key.Y.FillBytes(make([]byte, 32))),
	)
}
