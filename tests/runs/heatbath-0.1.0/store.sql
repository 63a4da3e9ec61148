PRAGMA application_id = 1751474548;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE epochs (
    run TEXT NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
    rate REAL NOT NULL, train_loss REAL NOT NULL, train_accuracy REAL NOT NULL, test_loss REAL NOT NULL, test_accuracy REAL NOT NULL, validation_loss REAL, validation_accuracy REAL,
    PRIMARY KEY (run, epoch)
) WITHOUT ROWID;
INSERT INTO "epochs" VALUES('08adf12eab992be6',1,0.01,0.5,0.3,0.55,0.9,NULL,NULL);
INSERT INTO "epochs" VALUES('351e782eef0001a1',1,0.02,0.25,0.3,0.275,0.9,NULL,NULL);
INSERT INTO "epochs" VALUES('351e782eef0001a1',2,0.02,0.2,0.4,2.20000000000000028865e-01,0.89,NULL,NULL);
INSERT INTO "epochs" VALUES('81e38491ddee56d3',1,0.015,3.33333333333333314829e-01,0.3,3.66666666666666696272e-01,0.9,0.5,0.75);
INSERT INTO "epochs" VALUES('81e38491ddee56d3',2,0.015,0.25,0.4,0.275,0.89,0.5,0.75);
INSERT INTO "epochs" VALUES('81e38491ddee56d3',3,0.015,0.2,0.5,2.20000000000000028865e-01,0.88,0.5,0.75);
INSERT INTO "epochs" VALUES('bd91e207cea0ecd6',1,0.005,1.0,0.3,1.1,0.9,NULL,NULL);
INSERT INTO "epochs" VALUES('bd91e207cea0ecd6',2,0.005,0.5,0.4,0.55,0.89,NULL,NULL);
INSERT INTO "epochs" VALUES('bd91e207cea0ecd6',3,0.005,3.33333333333333314829e-01,0.5,3.66666666666666696272e-01,0.88,NULL,NULL);
CREATE TABLE runs (
    run TEXT NOT NULL PRIMARY KEY, config TEXT NOT NULL, status TEXT NOT NULL, device TEXT NOT NULL DEFAULT '',
    versions TEXT NOT NULL DEFAULT '{}', precision TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0,
    owner TEXT, checkpoint TEXT, created REAL NOT NULL, updated REAL NOT NULL
);
INSERT INTO "runs" VALUES('bd91e207cea0ecd6','{"model": "mlp", "dataset": "mnist5k", "protocol": "random", "law": "uniform:1.0", "coupling": "gradient", "lr": 0.005, "batch_size": 256, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0, "epochs": 3, "precision": "auto", "weights": null, "seed": 0, "validation": 0}','finished','CPU (a)','{"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}','fp32',1.25,NULL,NULL,1750000000.0,1750000000.0);
INSERT INTO "runs" VALUES('08adf12eab992be6','{"model": "mlp", "dataset": "mnist5k", "protocol": "random", "law": "uniform:1.0", "coupling": "gradient", "lr": 0.02, "batch_size": 256, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0, "epochs": 3, "precision": "auto", "weights": null, "seed": 1, "validation": 0}','diverged','CPU (a)','{"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}','fp32',0.5,NULL,NULL,1750000000.0,1750000000.0);
INSERT INTO "runs" VALUES('81e38491ddee56d3','{"model": "mlp", "dataset": "mnist5k", "protocol": "random", "law": "uniform:1.0", "coupling": "gradient", "lr": 0.005, "batch_size": 256, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0, "epochs": 3, "precision": "auto", "weights": null, "seed": 2, "validation": 100}','finished','CPU (a)','{"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}','fp32',1.5,NULL,NULL,1750000000.0,1750000000.0);
INSERT INTO "runs" VALUES('351e782eef0001a1','{"model": "mlp", "dataset": "mnist5k", "protocol": "constant", "law": "constant", "coupling": "gradient", "lr": 0.005, "batch_size": 256, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0, "epochs": 3, "precision": "auto", "weights": null, "seed": 3, "validation": 0}','pending','CPU (a)','{"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}','fp32',0.75,NULL,'123-abc.0.0.checkpoint',1750000000.0,1750000000.0);
INSERT INTO "runs" VALUES('07c55f1a5c28e97e','{"model": "mlp", "dataset": "mnist5k", "protocol": "random", "law": "uniform:1.0", "coupling": "gradient", "lr": 0.005, "batch_size": 256, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0, "epochs": 3, "precision": "auto", "weights": null, "seed": 4, "validation": 0}','pending','','{}','',0.0,NULL,NULL,1750000000.0,1750000000.0);
COMMIT;
