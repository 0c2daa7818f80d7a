package main

import (
	"bytes"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// JSON texts of the discounts.
var discounts = map[string]string{"gold": "0.15", "silver": "0.1", "bronze": "0.05", "standard": "0.0"}

// enrich returns the order with its two fields, or why it is rejected.
func enrich(key, value []byte) (enriched []byte, reason string) {
	if value == nil {
		return nil, "no-value"
	}
	if !gjson.ValidBytes(value) {
		return nil, "not-json"
	}
	order := gjson.ParseBytes(value)
	if !order.IsObject() {
		return nil, "not-an-object"
	}
	customer := order.Get("customer_id")
	if customer.Type == gjson.Null || (customer.Type == gjson.String && customer.Str == "") {
		return nil, "no-customer-id"
	}
	prefix, _, _ := bytes.Cut(key, []byte{'-'})
	tier := string(prefix)
	if _, known := discounts[tier]; !known {
		tier = "standard"
	}
	enriched, err := sjson.SetBytes(value, "loyalty_tier", tier)
	if err == nil {
		enriched, err = sjson.SetRawBytes(enriched, "loyalty_discount", []byte(discounts[tier]))
	}
	if err != nil {
		return nil, "not-json"
	}
	return enriched, ""
}
